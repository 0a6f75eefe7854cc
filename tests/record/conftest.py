"""What tests of scripts share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Any]:
    import torch
    from script_listening import Listened
    from torch import nn

    from detscope.record.script.options import make_options

    call, engine = nn.Module.__call__, vars(torch.autograd)["_engine_run_backward"]

    def make(**options: Any) -> Listened:
        return Listened(make_options(out=tmp_path, script="loop.py", **options))

    yield make
    assert nn.Module.__call__ is call, "the hook on modules must come off"
    assert vars(torch.autograd)["_engine_run_backward"] is engine

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


@pytest.fixture
def planted_ms(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """How long calls of a class take, one after the other, the last one for ever: the clock is the test's."""
    from detscope.record.script.roots import RootModel

    planted: dict[str, list[float]] = {}
    plain = RootModel.add_call

    def add(self: RootModel, spent_ns: int, trains: bool) -> None:
        times = planted.get(self.label)
        if times:
            spent_ns = round(1e6 * (times.pop(0) if len(times) > 1 else times[0]))
        plain(self, spent_ns, trains)

    monkeypatch.setattr(RootModel, "add_call", add)
    return planted

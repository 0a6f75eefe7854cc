"""A part of `python -m bench saved`: programs that are made of a model in the middle of a recorded step."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.saved import try_net

OPERATIONS = ("script", "trace", "export", "onnx")


@pytest.mark.parametrize(("net", "how"), [("ssd", "run"), ("retinanet", "Recorder"), ("fcos", "run")])
def test_what_torch_makes_of_a_recorded_model_is_what_it_makes_without_us(
    net: str, how: str, tmp_path: Path
) -> None:
    found = try_net(net, tmp_path, OPERATIONS, ("recorded",), (how,))[how]
    assert found.wrong == []
    assert found.cells == len(OPERATIONS)
    assert found.results >= 3  # not every detector can be exported


@pytest.mark.slow
def test_a_model_that_is_sent_and_saved_in_a_memory_step_needs_no_detscope(tmp_path: Path) -> None:
    found = try_net("own net", tmp_path, ("save", "pickle", "spawn"), ("memory", "ops"), ("run",))["run"]
    assert found.wrong == []
    assert found.results == found.cells == 6

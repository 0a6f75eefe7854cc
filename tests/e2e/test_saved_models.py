"""A part of `python -m bench saved`: programs that are made of a model in the middle of a recorded step."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.saved import try_net

OPERATIONS = ("script", "trace", "export", "onnx")


@pytest.mark.parametrize("net", ["ssd", "retinanet", "fcos"])
def test_what_torch_makes_of_a_recorded_model_is_what_it_makes_without_us(net: str, tmp_path: Path) -> None:
    for how, found in try_net(net, tmp_path, OPERATIONS, ("recorded",)).items():
        assert found.wrong == [], how
        assert found.cells == len(OPERATIONS)
        assert found.results >= 3  # not every detector can be exported


def test_a_model_that_is_sent_and_saved_in_a_memory_step_needs_no_detscope(tmp_path: Path) -> None:
    for how, found in try_net("own net", tmp_path, ("save", "pickle", "spawn"), ("memory", "ops")).items():
        assert found.wrong == [], how
        assert found.results == found.cells == 6

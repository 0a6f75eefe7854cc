"""What makes a prediction quick changes none of its figures: rules of shapes, replays kept, lean imports."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from detscope.predict.garbage import skip_full_collections
from detscope.predict.memory.lifetimes import MemoryReplay
from detscope.predict.trace import network as trace_memory
from detscope.predict.trace.hollow import (
    BATCH_NORM,
    BATCH_NORM_BACKWARD,
    LIKE_THEIR_INPUTS,
    HollowRunner,
    describe_known,
)
from detscope.predict.trace.network import TracedNetwork, trace_network
from detscope.predict.trace.scratch import ScratchSizes
from detscope.predict.trace.step import BACKWARD
from detscope.zoo.networks import load_network

SHAPES = [(2, 3, 8, 8), (3, 1, 5, 5), (2, 4, 1, 1), (1, 2, 1, 7), (6, 5)]
MORE: dict[str, list[float]] = {
    "pow": [2.0], "clamp": [0.0], "rsub": [1.0], "threshold_backward": [0], "hardtanh_backward": [0.0, 6.0],
}  # fmt: skip
PAIRS = {"add", "sub", "mul", "div"}


def described(outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return (tuple(outputs.shape), outputs.stride(), outputs.dtype)
    return tuple(map(described, outputs))


def batch_norm(shape: tuple[int, ...], training: bool = True, dtype: Any = None) -> list[Any]:
    image = torch.zeros(shape, dtype=dtype)
    own = [torch.zeros(shape[1], dtype=dtype) for _ in range(4)]
    return [image, *own, training, 0.1, 1e-5]


def batch_norm_backward(shape: tuple[int, ...], wanted: tuple[bool, ...] = (True,) * 3) -> list[Any]:
    own = [torch.zeros(shape[1]) for _ in range(5)]
    return [torch.zeros(shape), torch.zeros(shape), *own, True, 1e-5, list(wanted)]


@pytest.mark.parametrize("shape", SHAPES)
def test_rules_say_what_the_operators_give(shape: tuple[int, ...]) -> None:
    aten = torch.ops.aten
    given = batch_norm(shape)
    assert describe_known(BATCH_NORM, given, {}) == described(aten.native_batch_norm(*given))
    given = batch_norm_backward(shape)
    assert describe_known(BATCH_NORM_BACKWARD, given, {}) == described(
        aten.native_batch_norm_backward(*given)
    )
    for name in LIKE_THEIR_INPUTS:
        kind = name.partition(".")[2]
        two = kind in PAIRS or kind.endswith("_backward")
        tensors = [torch.ones(shape) for _ in range(2 if two else 1)]
        given = [*tensors, *MORE.get(kind, [])]
        assert describe_known(name, given, {}) == described(getattr(aten, kind)(*given)), name


def test_where_rules_do_not_hold_torch_is_asked() -> None:
    image = torch.zeros(2, 3, 4, 4)
    last = image.contiguous(memory_format=torch.channels_last)
    for given in (
        [image, last],
        [last],
        [image, torch.zeros(3, 1, 1)],
        [image, torch.zeros(())],
        [image.double()],
        [image, None],
        [torch.zeros(0, 3)],
        [image[:, :, ::2]],
        [2.0],
    ):
        assert describe_known("aten.mul", given, {}) is None
    assert describe_known("aten.add", [image, image], {"alpha": 2}) is None
    assert describe_known("aten.cat", [image], {}) is None
    assert describe_known(BATCH_NORM, batch_norm((2, 3, 4, 4), training=False), {}) is None
    assert describe_known(BATCH_NORM, batch_norm((2, 3, 4, 4), dtype=torch.float64), {}) is None
    assert describe_known(BATCH_NORM_BACKWARD, batch_norm_backward((2, 3), (True, False, True)), {}) is None


def test_an_operator_that_is_left_out_gives_what_the_rule_says() -> None:
    image = torch.zeros(2, 8, 64, 64)
    found = HollowRunner()("aten.mul", torch.ops.aten.mul.Tensor, (image, image), {}, BACKWARD)
    assert described(found) == described(image)
    many = HollowRunner()(
        BATCH_NORM, torch.ops.aten.native_batch_norm.default, batch_norm((2, 3, 4, 4)), {}, ""
    )
    assert [tuple(one.shape) for one in many] == [(2, 3, 4, 4), (3,), (3,)]


@pytest.fixture(scope="module")
def detector() -> TracedNetwork:
    """Its two steps do not match: it works image by image."""
    traced = trace_network(load_network("tiny_fasterrcnn"))
    assert not traced.steps_match
    return traced


def test_traced_steps_are_replayed_once_for_all_batches(
    detector: TracedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = []

    class Counted(MemoryReplay):
        def replay_events(self, events: Any) -> None:
            replayed.append(len(events))
            super().replay_events(events)

    monkeypatch.setattr(trace_memory, "MemoryReplay", Counted)
    one, other = detector.steps
    fresh = replace(detector, steps=(replace(one), replace(other)))  # nothing is kept of these yet
    peaks = {batch: fresh.find_cuda_peak(batch) for batch in (1, 2, 5, 40)}
    assert len(replayed) == len(fresh.steps)
    assert fresh.find_cuda_peak(2, "adam").allocated > peaks[2].allocated
    assert peaks[40].reserved > peaks[5].reserved > peaks[1].reserved


def test_a_peak_does_not_depend_on_the_batches_asked_for_before(detector: TracedNetwork) -> None:
    asked = [detector.find_cpu_peak(batch, "sgd") for batch in (1, 40, 3)]
    alone = [replace(detector, book=ScratchSizes()).find_cpu_peak(batch, "sgd") for batch in (1, 40, 3)]
    assert asked == alone


def test_only_rounds_through_everything_are_left_out_and_they_come_back() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="broken"), skip_full_collections():
        assert gc.get_threshold()[:2] == before[:2]
        assert gc.get_threshold()[2] > 1_000_000
        raise ValueError("broken")
    assert gc.get_threshold() == before


def test_a_prediction_loads_nothing_that_only_fits_and_reports_need() -> None:
    code = (
        "import sys, detscope.cli.networks.predict, detscope.sessions.predict.prediction\n"
        "import detscope.report.verbs.prediction, detscope.report.render.terminal\n"
        "slow = ('torch', 'scipy', 'sklearn', 'skops', 'polars', 'jinja2', 'PIL', 'matplotlib')\n"
        "print([name for name in slow if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

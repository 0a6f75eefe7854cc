from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from detscope.errors import MachineError, UsageError
from detscope.predict.device.model import fit_device
from detscope.predict.layers.calls import LayerCall, classify_call
from detscope.predict.layers.graph import LayerGraph
from detscope.predict.layers.kinds import (
    ADAM,
    ARITHMETIC,
    BESIDE,
    BILINEAR,
    CLAMP_IN_PLACE,
    CONVOLUTION,
    GROUP_NORM,
    INDEX,
    KNOWN_KINDS,
    LOSS,
    NEAREST,
    PARAMETER,
    REDUCTION,
    ROI_ALIGN,
    SORTING,
    STEP,
)
from detscope.predict.layers.model import LayerModel, fit_layers
from detscope.predict.layers.times import LayerTime, read_layer_times, write_layer_times
from detscope.predict.microbench.calls import (
    LaunchClock,
    LayerBench,
    QueuedClock,
    make_call,
    make_clock,
    make_inputs,
)
from detscope.predict.microbench.design import (
    DETECTION,
    LayerLimits,
    LayerTrial,
    draw_rounds,
    draw_small,
    draw_views,
)
from detscope.predict.microbench.run import MachineDrift, measure_layer, measure_layers
from detscope.predict.samples import StepCase
from detscope.sessions.fit.fitting import run_microbench
from queued_device import QueuedDevice

DETECTION_KINDS = BESIDE | {ROI_ALIGN, GROUP_NORM, NEAREST, BILINEAR}
DETECTION_KINDS |= {ARITHMETIC, REDUCTION, INDEX, SORTING, LOSS}
TINY = LayerLimits(elements=2e4, multiplications=2e6)


class OwnTime:
    """In the place of the module `time`: a second passes with every layer that is begun, and never else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.told = 100.0, list[float]()
        monkeypatch.setattr("detscope.predict.microbench.run.time", self)

    def perf_counter(self) -> float:
        return self.now

    def begins(self, share: float, _text: str) -> None:
        """To be called as the bench's progress."""
        self.told.append(share)
        self.now += 1.0


class Ticks:
    """A clock to which every call takes one ms."""

    def __init__(self) -> None:
        self.ticks = 0

    def reset(self) -> None:
        self.ticks = 0

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.ticks += 1

    def total_ms(self) -> float:
        return float(self.ticks)


class Multiplications(Ticks):
    """A clock to which every multiplication and every addition takes one ms."""

    def __init__(self, counter: Any) -> None:
        super().__init__()
        self._counter, self._began = counter, 0

    def start(self) -> None:
        self._began = self._counter.get_total_flops()

    def stop(self) -> None:
        self.ticks += self._counter.get_total_flops() - self._began


def test_the_same_seed_gives_the_same_layers_and_another_gives_others() -> None:
    one, same, other = (list(islice(draw_rounds(seed), 2)) for seed in (3, 3, 4))
    assert one == same
    assert one != other
    assert one[0] != one[1]


def test_every_round_holds_every_kind_and_keeps_its_limits() -> None:
    for trials in islice(draw_rounds(0, TINY), 3):
        kinds = {trial.operation.kind for trial in trials}
        assert kinds == KNOWN_KINDS | DETECTION_KINDS | {PARAMETER, ADAM, STEP, CLAMP_IN_PLACE}
        assert all(trial.multiplications <= TINY.multiplications for trial in trials)
        images = [trial for trial in trials if trial.operation.kind not in (PARAMETER, ADAM, STEP)]
        assert all(trial.largest_elements <= TINY.elements for trial in images)


def test_convolutions_of_all_classes_with_aligned_and_odd_channels_come_in_a_few_rounds() -> None:
    trials = [
        trial for some in islice(draw_rounds(0), 4) for trial in some if trial.operation.kind == CONVOLUTION
    ]
    classes = {
        classify_call(LayerCall(trial.operation, trial.batch, trial.stages[0]), training=True)
        for trial in trials
    }
    assert classes == {
        "1x1 convolution",
        "1x1 convolution, few images",
        "3x3 convolution",
        "strided convolution",
        "strided 1x1 convolution",
        "large-window convolution",
        "depthwise convolution",
        "grouped convolution",
        "first convolution",
    }
    inside = [trial.operation.convolution.in_channels % 16 for trial in trials if trial.operation.convolution]
    assert 0.25 < sum(rest == 0 for rest in inside) / len(inside) < 0.75


def test_every_layer_of_a_round_runs_and_has_the_shape_that_it_says() -> None:
    import torch

    bench = LayerBench(torch, "cpu", make_clock("cpu"))
    for trial in next(draw_rounds(0, TINY)):
        if trial.operation.kind in (PARAMETER, ADAM, STEP, SORTING, *BESIDE):
            continue
        call = make_call(bench, trial, training=True)
        _, inputs = make_inputs(bench, trial, input_gradient=True)
        output = call(*inputs)
        rows, *more = trial.operation.output_shape
        summed = trial.operation.output_shape == (1,)
        assert tuple(output.shape) == (() if summed else (trial.batch * rows, *more)), trial
        parameters = () if call.module is None else [one.numel() for one in call.module.parameters()]
        assert tuple(parameters) == trial.operation.parameters


def test_a_tiny_bench_is_measured_kept_and_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detscope.predict.microbench.run.CPU_LIMITS", TINY)
    own = OwnTime(monkeypatch)
    file = tmp_path / "kept" / "microbench.csv"
    rows = run_microbench("cpu", 40.0, file, own.begins, threads=1)
    begun = next(draw_rounds(0, TINY))[:40]  # when the time is over, no other layer begins
    assert [row.operation for row in rows] == [trial.operation for trial in begun for _ in trial.stages]
    assert all(row.ms > 0 and row.drift > 0 for row in rows)
    assert own.told == [second / 40 for second in range(40)]
    assert [one.stage for one in read_layer_times(file)] == [one.stage for one in rows]
    facts = json.loads((tmp_path / "kept" / "microbench.environment.json").read_text())
    assert facts["rows"] == len(rows)
    assert facts["torch_threads"] == 1
    assert facts["slowest_reference_over_fastest"] >= 1
    assert str(tmp_path) not in json.dumps(facts)
    assert fit_device([], layer_times=rows).layer_rows == len(rows)


def test_more_work_takes_longer() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    some = LayerLimits(elements=1e6, multiplications=5e7)
    layers = [(trial, trial.operation.convolution) for trial in next(draw_rounds(0, some))]
    trials = [trial for trial, layer in layers if layer and layer.groups == 1]  # others torch counts wrongly
    cost = attrgetter("multiplications")
    with FlopCounterMode(display=False) as counter:
        bench = LayerBench(torch, "cpu", Multiplications(counter))
        for trial in (min(trials, key=cost), max(trials, key=cost)):
            forward = 2 * trial.multiplications  # each with an addition
            assert measure_layer(bench, trial, "inference") == forward
            assert measure_layer(bench, trial, "training") == pytest.approx(3 * forward)


def test_the_processors_clock_adds_up_what_lies_between_start_and_stop() -> None:
    clock = make_clock("cpu")
    clock.reset()
    for _ in range(2):
        clock.start()
        time.sleep(0.01)
        clock.stop()
    assert clock.total_ms() > 19
    once = clock.total_ms()
    time.sleep(0.01)
    assert clock.total_ms() == once
    clock.reset()
    assert clock.total_ms() == 0


def test_a_bench_without_time_or_device_says_so_in_one_line() -> None:
    with pytest.raises(UsageError, match="no time"):
        run_microbench("cpu", 0.0, None)
    with pytest.raises(UsageError, match="not one layer"):
        run_microbench("cpu", 1e-9, None)
    with pytest.raises((MachineError, UsageError)):
        run_microbench("cuda:99", 1.0, None)


def test_drift_is_in_proportion_between_references_and_one_accident_is_none() -> None:
    seconds = tuple(10.0 * place for place in range(7))
    drift = MachineDrift(seconds, (9.0, 2.0, 2.0, 2.0, 2.0, 4.0, 4.0), (1.0,) * 7)
    assert drift.slowness_at(0.0, computes=True) == pytest.approx(1.0)
    assert drift.slowness_at(45.0, computes=True) == pytest.approx(1.5)
    assert drift.slowness_at(60.0, computes=True) == pytest.approx(2.0)
    assert drift.slowness_at(45.0, computes=False) == pytest.approx(1.0)
    assert drift.largest_ratio == pytest.approx(2.0)


def test_a_round_that_did_not_end_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnTime(monkeypatch)
    monkeypatch.setattr("detscope.predict.microbench.run.measure_layer", lambda *_: 1.0)
    whole = len(next(draw_rounds(0, TINY)))
    for seconds, finished in ((5, 0), (whole, 1)):
        assert measure_layers("cpu", seconds, limits=TINY, progress=own.begins).rounds == finished


def test_what_is_told_of_small_operators_is_what_they_are() -> None:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        calls = elements = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            self.calls += 1
            leaves = torch.utils._pytree.tree_leaves((args, found))
            self.elements += sum(one.numel() for one in leaves if isinstance(one, torch.Tensor))
            return found

    bench = LayerBench(torch, "cpu", make_clock("cpu"))
    for draw in (draw_views, draw_small):
        trial = draw(Random(5))
        with Counted() as counted:
            make_call(bench, trial, training=False)()
        # what is made beforehand is counted too
        with Counted() as before:
            make_call(bench, trial, training=False)
        assert counted.calls - before.calls == trial.parts
        if draw is draw_small:
            moved = (counted.elements - before.elements) / trial.parts
            assert moved == pytest.approx(trial.operation.output_elements, rel=0.1)


@pytest.mark.parametrize(("kind", "ms"), [("relu", 1.05), (STEP, 2.0)])
def test_the_start_of_a_backward_pass_is_no_part_of_a_small_layer_but_of_a_step(kind: str, ms: float) -> None:
    """Forward is a call, and backward another that is as long as one with nothing in it."""
    import torch

    bench = LayerBench(torch, "cpu", Ticks())
    trials = [trial for trial in next(draw_rounds(0, TINY)) if trial.operation.kind == kind]
    assert measure_layer(bench, trials[0], "training") == pytest.approx(ms)


@pytest.mark.parametrize("draw", [draw for draw, _ in DETECTION], ids=lambda draw: draw.__name__)
def test_operators_of_detectors_run_at_whatever_sizes_are_drawn(draw: Callable[[Random], LayerTrial]) -> None:
    import torch

    bench = LayerBench(torch, "cpu", make_clock("cpu"))
    for seed in range(4):
        trial = draw(Random(seed))
        for stage in trial.stages:
            assert measure_layer(bench, trial, stage) > 0


@pytest.mark.parametrize("kernel_ns", [3_000, 700_000])
def test_a_devices_layer_takes_what_its_kernels_take_and_its_launch_is_timed_apart(
    kernel_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host needs 40 us for a call: far longer than a small kernel, which must not inherit that."""
    launch_ns = 40_000
    device = QueuedDevice()
    monkeypatch.setattr("detscope.predict.microbench.calls.time", device)
    kernels, launches = QueuedClock(device, lambda s: device.compute(0, round(s * 1e9))), LaunchClock(device)
    for clock, expected_ns in ((kernels, kernel_ns), (launches, launch_ns)):
        for _ in range(3):  # after the first the clock knows for how long the device must be busy
            clock.reset()
            for _ in range(100):
                device.compute(5_000, 2_000)  # its inputs are made
                clock.start()
                device.compute(launch_ns, kernel_ns)
                clock.stop()
            found_ms = clock.total_ms()
        assert found_ms == pytest.approx(100 * expected_ns / 1e6)


def test_layers_of_a_device_keep_both_times_and_a_step_is_the_slower_of_both(tmp_path: Path) -> None:
    trials = [trial for some in islice(draw_rounds(0, TINY), 2) for trial in some]
    rows = [
        LayerTime(trial.operation, trial.batch, stage, 0.002, host_ms=0.05)
        for trial in trials
        for stage in trial.stages
    ]
    write_layer_times(tmp_path / "times.csv", rows)
    assert [row.host_ms for row in read_layer_times(tmp_path / "times.csv")] == [0.05] * len(rows)
    older = (tmp_path / "times.csv").read_text().splitlines()
    (tmp_path / "older.csv").write_text("\n".join(line.rpartition(",")[0] for line in older))
    assert {row.host_ms for row in read_layer_times(tmp_path / "older.csv")} == {None}
    model = LayerModel(fit_layers(rows))
    alone = LayerModel(fit_layers(read_layer_times(tmp_path / "older.csv")))
    graph = LayerGraph(
        "one", (next(trial.operation for trial in trials if trial.operation.kind == CONVOLUTION),)
    )
    case = StepCase(graph, 2)
    device_ms, host_ms = (float(part[0]) for part in model.split_parts([case]))
    assert host_ms > 10 * device_ms > 0
    assert model.predict([case])[0] == host_ms
    assert alone.predict([case])[0] == pytest.approx(device_ms)

"""Measuring single layers as a training step runs them.

In a real step a layer's input was just written (warm), its output goes to memory that nobody has touched, and
by the time of the backward pass what forward kept has left the caches. So several copies of a layer run
forward one after the other, all outputs alive, and then backward in reverse; time is taken around each call
alone. On a device that is the time of its kernels, measured while it is kept busy, and the host's time to
queue them is measured apart. A step starts the backward pass once and not for every layer, so an empty one is
timed beside them and taken off. The machine's speed drifts: two reference layers are measured every few
seconds, and every row says how slow the machine was at its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from detscope.machine.accelerator import find_accelerator
from detscope.predict.layers import kinds
from detscope.predict.layers.graph import Convolution, Operation
from detscope.predict.layers.times import INFERENCE, TRAINING, UPDATE, LayerTime
from detscope.predict.microbench.calls import (
    Clock,
    LaunchClock,
    LayerBench,
    make_call,
    make_clock,
    make_inputs,
    make_update,
)
from detscope.predict.microbench.design import CPU_LIMITS, CUDA_LIMITS, LayerLimits, LayerTrial, draw_rounds
from detscope.predict.samples import Array

if TYPE_CHECKING:
    from torch import Tensor

_ALIVE_BYTES = 48e6  # what the copies of a layer hold together, so that caches forget between the passes
_FEWEST, _MOST = 2, 4  # copies
_LONG_ENOUGH_S = 0.02
_REPEATS = (3, 7)
_LEAST = 0.05  # of a backward pass that stays, however short
_SLOW_S = 0.08  # a layer that takes so long is measured twice, not more often
_REFERENCE_EVERY_S = 4.0
_REFERENCE_REPEATS = 5
_IMAGE = (1, 64, 28, 28)
_LARGE = (1, 64, 64, 64)
_WINDOW = Convolution(64, 64, (3, 3), padding=(1, 1))
_COMPUTE = LayerTrial(Operation(kinds.CONVOLUTION, (0,), (_IMAGE,), 1, _IMAGE, (64 * 64 * 9,), _WINDOW), 4)
_MOVE = LayerTrial(Operation(kinds.ADD, (0, 1), (_LARGE, _LARGE), 2, _LARGE), 8)


@dataclass(frozen=True)
class MachineDrift:
    """When the references were measured (s), and their ms: of a convolution and of an addition."""

    seconds: tuple[float, ...]
    compute_ms: tuple[float, ...]
    move_ms: tuple[float, ...]

    def slowness_at(self, second: float, computes: bool) -> float:
        """How slow the machine was then, against its median; between two measurements in proportion."""
        values = self.compute_ms if computes else self.move_ms
        return float(np.interp(second, self.seconds, _without_outliers(values) / median(values)))

    @property
    def largest_ratio(self) -> float:
        """The slowest reference over the fastest, accidents aside."""
        usual = map(_without_outliers, (self.compute_ms, self.move_ms))
        return max(float(some.max() / some.min()) for some in usual)


def _without_outliers(values: Sequence[float]) -> Array:
    """The median of each and its neighbours: one measurement alone may be an accident."""
    last = max(0, len(values) - 3)
    starts = (min(max(0, place - 1), last) for place in range(len(values)))
    return np.array([median(values[start : start + 3]) for start in starts])


class ReferenceLayers:
    """Measures the reference layers when it is time to."""

    def __init__(self, bench: LayerBench) -> None:
        self._runs = [_time_forward(bench, trial, 1) for trial in (_COMPUTE, _MOVE)]
        self._found: list[tuple[float, float, float]] = []
        for run in self._runs * _REFERENCE_REPEATS:  # until memory is there and kernels are chosen
            run()
        self.measure_if_due(0.0)

    def measure_if_due(self, every_s: float) -> None:
        """Measure, if the last time is long enough ago."""
        now = time.perf_counter()
        if self._found and now - self._found[-1][0] < every_s:
            return
        compute, move = (median(run() for _ in range(_REFERENCE_REPEATS)) for run in self._runs)
        self._found.append((time.perf_counter(), compute, move))

    def collect_drift(self) -> MachineDrift:
        """All measurements so far."""
        seconds, compute, move = zip(*self._found, strict=True)
        return MachineDrift(tuple(seconds), tuple(compute), tuple(move))


@dataclass(frozen=True)
class Microbench:
    """What was measured, how many rounds came to their end, and the reference layers' drift."""

    rows: tuple[LayerTime, ...]
    rounds: int
    seconds: float
    drift: MachineDrift


def measure_layers(
    device: str,
    seconds: float,
    *,
    seed: int = 0,
    limits: LayerLimits | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Microbench:
    """Measure layers, round after round, until the time is over; the last round may stay unfinished."""
    import torch

    accelerator = find_accelerator(device)
    bench, launches = LayerBench(torch, device, make_clock(device)), None
    if not accelerator.is_host:
        launches = LayerBench(torch, device, LaunchClock(accelerator))
    if limits is None:
        limits = CPU_LIMITS if accelerator.is_host else CUDA_LIMITS
    began = time.perf_counter()
    reference = ReferenceLayers(bench)
    found: list[tuple[float, LayerTime]] = []
    finished = -1
    numbered = ((number, trial) for number, some in enumerate(draw_rounds(seed, limits)) for trial in some)
    for number, trial in numbered:
        passed = time.perf_counter() - began
        finished = number
        if passed >= seconds:
            break
        if progress is not None:
            progress(passed / seconds, f"{len(found)} layers")
        reference.measure_if_due(_REFERENCE_EVERY_S)
        for stage in trial.stages:
            ms = measure_layer(bench, trial, stage)
            host_ms = None if launches is None else measure_layer(launches, trial, stage)
            row = LayerTime(trial.operation, trial.batch, stage, ms, host_ms=host_ms)
            found.append((time.perf_counter(), row))
    reference.measure_if_due(0.0)
    drift = reference.collect_drift()
    rows = [
        replace(row, drift=drift.slowness_at(when, row.operation.kind in (kinds.CONVOLUTION, kinds.LINEAR)))
        for when, row in found
    ]
    return Microbench(tuple(rows), finished, time.perf_counter() - began, drift)


def measure_layer(bench: LayerBench, trial: LayerTrial, stage: str) -> float:
    """The median time of one layer in one stage, in ms."""
    if stage == UPDATE:
        run = make_update(bench, trial)
    elif stage == INFERENCE:
        run = _time_forward(bench, trial, _FEWEST)
    else:
        run = _time_training(bench, trial, input_gradient=stage == TRAINING)
    began = time.perf_counter()
    run()  # kernels are chosen and compiled in the first call
    took = time.perf_counter() - began
    if took > _SLOW_S:
        return median((run(), run())) / trial.parts
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _REPEATS[0] or (
        len(times) < _REPEATS[1] and time.perf_counter() - began < _LONG_ENOUGH_S
    ):
        times.append(run())
    return median(times) / trial.parts


def _time_training(bench: LayerBench, trial: LayerTrial, *, input_gradient: bool) -> Callable[[], float]:
    """A function that runs all copies forward, then backward, and gives the ms of one."""
    one = trial.operation
    held = 4 * (trial.batch * (one.input_elements + one.output_elements) + 2 * sum(one.parameters))
    copies = max(_FEWEST, min(_MOST, round(_ALIVE_BYTES / held)))
    calls = [make_call(bench, trial, training=True) for _ in range(copies)]
    shape = one.output_shape
    gradient = bench.draw_tensor((trial.batch * shape[0], *shape[1:]))
    clock = bench.clock
    leaf, one_number = bench.draw_tensor((1,)).requires_grad_(), bench.draw_tensor((1,))

    def run() -> float:
        clock.reset()
        waiting: list[tuple[Any, Tensor, Sequence[Tensor]]] = []
        for call in calls:
            leaves, inputs = make_inputs(bench, trial, input_gradient=input_gradient)
            clock.start()
            output = call(*inputs)
            clock.stop()
            waiting.append((call, output, leaves))
            del output, inputs
        forward_ms = clock.total_ms()
        clock.reset()
        while waiting:
            call, output, leaves = waiting.pop()
            _run_backward(clock, output, gradient, leaves)
            del output
            call.clear_gradients()
        backward_ms = clock.total_ms()
        if trial.operation.kind != kinds.STEP:  # the start of the backward pass is a part of it
            nothing = leaf.view(1)
            clock.reset()
            _run_backward(clock, nothing, one_number, (leaf,))
            backward_ms = max(_LEAST * backward_ms, backward_ms - len(calls) * clock.total_ms())
        return (forward_ms + backward_ms) / len(calls)

    return run


def _run_backward(clock: Clock, output: Tensor, gradient: Tensor, leaves: Iterable[Tensor]) -> None:
    clock.start()
    output.backward(gradient if output.dim() else None)
    for leaf in leaves:
        leaf.grad = None  # in a step the layer before consumes it
    clock.stop()


def _time_forward(bench: LayerBench, trial: LayerTrial, copies: int) -> Callable[[], float]:
    """A function that runs all copies forward alone, and gives the ms of one."""
    calls = [make_call(bench, trial, training=False) for _ in range(copies)]
    clock = bench.clock

    def run() -> float:
        clock.reset()
        with bench.torch.no_grad():
            for call in calls:
                _, inputs = make_inputs(bench, trial, input_gradient=False)
                clock.start()
                output = call(*inputs)
                clock.stop()
                del output, inputs
        return clock.total_ms() / len(calls)

    return run

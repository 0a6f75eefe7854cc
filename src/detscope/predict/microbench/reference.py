"""Two reference layers, measured again and again: how much the machine's speed drifts during a microbench."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from detscope.predict.layers.graph import ADD, CONVOLUTION, Convolution, Operation
from detscope.predict.microbench.calls import Bench, made_call, made_inputs
from detscope.predict.microbench.trial import Trial

_REPEATS = 5
_IMAGE = (1, 64, 28, 28)
_LARGE = (1, 64, 64, 64)
_COMPUTE = Trial(
    Operation(
        CONVOLUTION, (0,), (_IMAGE,), 1, _IMAGE, (64 * 64 * 9,), Convolution(64, 64, (3, 3), padding=(1, 1))
    ),
    4,
)
_MOVE = Trial(Operation(ADD, (0, 1), (_LARGE, _LARGE), 2, _LARGE), 8)


@dataclass(frozen=True)
class Drift:
    """When the references were measured (s), and their ms: of a convolution and of an addition."""

    seconds: tuple[float, ...]
    compute_ms: tuple[float, ...]
    move_ms: tuple[float, ...]

    def at(self, second: float, computes: bool) -> float:
        """How slow the machine was then, against its median; between two measurements in proportion."""
        values = self.compute_ms if computes else self.move_ms
        return float(np.interp(second, self.seconds, _without_outliers(values) / median(values)))

    @property
    def largest(self) -> float:
        """The slowest reference over the fastest, accidents aside."""
        usual = map(_without_outliers, (self.compute_ms, self.move_ms))
        return max(float(some.max() / some.min()) for some in usual)


def _without_outliers(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """The median of each and its neighbours: one measurement alone may be an accident."""
    last = max(0, len(values) - 3)
    starts = (min(max(0, place - 1), last) for place in range(len(values)))
    return np.array([median(values[start : start + 3]) for start in starts])


class Reference:
    """Measures the reference layers when it is time to."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._runs = tuple(_forward(bench, trial) for trial in (_COMPUTE, _MOVE))
        self._found: list[tuple[float, float, float]] = []
        self.keep_up(0.0)

    def keep_up(self, every_s: float) -> None:
        """Measure, if the last time is long enough ago."""
        now = time.perf_counter()
        if self._found and now - self._found[-1][0] < every_s:
            return
        compute, move = (median(run() for _ in range(_REPEATS)) for run in self._runs)
        self._found.append((time.perf_counter(), compute, move))

    def drift(self) -> Drift:
        """All measurements so far."""
        seconds, compute, move = zip(*self._found, strict=True)
        return Drift(tuple(seconds), tuple(compute), tuple(move))


def _forward(bench: Bench, trial: Trial) -> Callable[[], float]:
    call = made_call(bench, trial, training=False)

    def run() -> float:
        _, inputs = made_inputs(bench, trial, input_gradient=False)
        bench.clock.reset()
        with bench.torch.no_grad():
            bench.clock.start()
            call(*inputs)
            bench.clock.stop()
        return bench.clock.total_ms()

    for _ in range(_REPEATS):  # until memory is there and kernels are chosen
        run()
    return run

"""Variants of the same work, interleaved round by round, compared as ratios: seconds mean nothing here.

Or at the same time, each on a core and with a thread of its own: what the machine does to one it does to
the other.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import numpy as np

from detscope.analyze.stats import bootstrap_interval


@dataclass(frozen=True)
class Ratio:
    """A ratio with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


Seen = TypeVar("Seen")


def run_at_once(works: Sequence[Callable[[int], Seen]], turn: int) -> list[Seen]:
    """Works at the same time, each handed a core of its own; with every turn they swap."""
    cores = sorted(os.sched_getaffinity(0))
    with ThreadPoolExecutor(len(works)) as all_works:
        begun = [
            all_works.submit(work, cores[(place + turn) % len(cores)]) for place, work in enumerate(works)
        ]
        return [one.result() for one in begun]


def pin_to(core: int | None) -> list[str]:
    """What stands before a command that is to have one core and one thread; None: it has the machine."""
    return [] if core is None else ["env", "OMP_NUM_THREADS=1", "taskset", "--cpu-list", str(core)]


def interleave(variants: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every variant in every round; the order turns from round to round."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for name in names:
        variants[name]()  # warm up
    for index in range(rounds):
        turn = index % len(names)
        for name in names[turn:] + names[:turn]:
            start = perf_counter()
            variants[name]()
            seconds[name].append(perf_counter() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], name: str, base: str) -> Ratio:
    """Median of the rounds' ratios, with a bootstrap interval."""
    values = np.asarray([a / b for a, b in zip(seconds[name], seconds[base], strict=True)])
    interval = bootstrap_interval(values, lambda sample: float(np.median(sample)))
    middle = float(np.median(values))
    return Ratio(middle, interval.low if interval else middle, interval.high if interval else middle)


def verdict(found: Ratio, bound: float) -> str:
    """Whether an aim is met, missed, or too noisy to tell."""
    if found.value <= bound:
        return f"holds (aim {bound})"
    return f"MISSED (aim {bound})" if found.low > bound else f"above the aim {bound}, within noise"


def middle_ms(seconds: list[float], steps: int) -> float:
    """Median milliseconds per step, for orientation only."""
    return statistics.median(seconds) / steps * 1e3

"""Statistics that promise no more than the samples hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MOST_FOR_EXACT_RANKS = 1000  # beyond, chances are too small for floating point, and a normal law is as good
CONFIDENCE_OF_PERCENTILE = 0.99  # chance that at least one sample lies beyond the percentile


class Interval(NamedTuple):
    """The ends of a 95 % interval; None where the samples do not support one."""

    low: float
    high: float


def samples_needed(percentile: float) -> int:
    """Samples after which one beyond the percentile has been seen with 99 % certainty (459 for p99)."""
    return math.ceil(math.log(1 - CONFIDENCE_OF_PERCENTILE) / math.log(percentile / 100))


def percentile_or_why(values: Sequence[float], percentile: float) -> tuple[float | None, str | None]:
    """A percentile, or None and how many samples it would need."""
    needed = samples_needed(percentile)
    if len(values) < needed:
        return None, f"needs {needed}"
    return float(np.percentile(np.asarray(values, dtype=float), percentile)), None


def median_interval(values: Sequence[float]) -> Interval | None:
    """Distribution-free 95 % interval of the median by order statistics; needs six samples."""
    ordered = sorted(values)
    count = len(ordered)
    if count > MOST_FOR_EXACT_RANKS:
        rank = math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1
        return Interval(ordered[rank], ordered[count - 1 - rank])
    rank = 0
    below = 0.5**count  # chance that all samples lie on one side of the median
    term = below
    while 2 * (below + term * (count - rank) / (rank + 1)) <= 0.05:
        term *= (count - rank) / (rank + 1)
        below += term
        rank += 1
    if 2 * below > 0.05:
        return None
    return Interval(ordered[rank], ordered[count - 1 - rank])


def bootstrap_interval(
    values: Floats, statistic: Callable[[Floats], float], rounds: int = 2000, seed: int = 0
) -> Interval | None:
    """95 % percentile bootstrap; needs five samples."""
    if len(values) < 5:
        return None
    generator = np.random.default_rng(seed)
    count = len(values)  # one round at a time: all picks at once would take gigabytes for long runs
    results = np.sort([statistic(values[generator.integers(0, count, count)]) for _ in range(rounds)])
    return Interval(float(results[int(0.025 * rounds)]), float(results[int(0.975 * rounds) - 1]))


def robust_spread(values: Sequence[float]) -> float | None:
    """Relative spread: the middle half's width as that of a normal distribution, over the median."""
    if len(values) < 4:
        return None
    low, middle, high = np.percentile(np.asarray(values, dtype=float), [25, 50, 75])
    return float((high - low) / 1.349 / middle) if middle > 0 else None


def percent(share: float, digits: int = 0) -> str:
    """A share as people read it: `41 %`."""
    return f"{share * 100:.{digits}f} %"

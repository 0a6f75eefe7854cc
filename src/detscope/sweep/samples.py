"""When a series of durations is enough: the median's interval, warm-up, steadiness. Plain Python."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from detscope.sweep.plan_settings import Measure

LEAST_SECONDS = 0.3  # of quick steps: six of them could all be slow ones
UNSTABLE_SPREAD = 0.10
_EXACT = 1000
_OUTLIER_WIDTHS, _OUTLIER_LEAST = 5.0, 0.25


@dataclass(frozen=True)
class Middle:
    """A median with its 95 % interval; None where there are too few samples for one."""

    median: float
    low: float | None
    high: float | None
    count: int

    @property
    def width(self) -> float | None:
        """The interval's width as a share of the median."""
        if self.low is None or self.high is None or self.median <= 0:
            return None
        return (self.high - self.low) / self.median


def middle_of(values: Sequence[float]) -> Middle:
    """The median and its distribution-free interval by order statistics; six samples have one."""
    ordered = sorted(values)
    count = len(ordered)
    rank = _rank(count)
    median = statistics.median(ordered)
    if rank is None:
        return Middle(median, None, None, count)
    return Middle(median, ordered[rank], ordered[count - 1 - rank], count)


def _rank(count: int) -> int | None:
    if count > _EXACT:
        return math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1
    # of at most 1000 fair coins: how few heads are still not surprising
    total, below, rank = 2**count, 0, -1
    while 2 * (below + math.comb(count, rank + 1)) <= 0.05 * total:
        rank += 1
        below += math.comb(count, rank)
    return rank if rank >= 0 else None


def warmup_length(values: Sequence[float]) -> int:
    """Slow samples at the very beginning that the later half does not share."""
    if len(values) < 12:
        return 0
    settled = values[len(values) // 2 :]
    middle = statistics.median(settled)
    deviation = 1.4826 * statistics.median(abs(value - middle) for value in settled)
    limit = middle + max(_OUTLIER_WIDTHS * deviation, _OUTLIER_LEAST * middle)
    count = 0
    while count < len(values) // 2 and values[count] > limit:
        count += 1
    return count


def enough(seconds: Sequence[float], rules: Measure) -> str | None:
    """Why measuring may stop: "interval", "steps" or "time"; None: go on."""
    count, spent = len(seconds), sum(seconds)
    if count >= rules.max_steps:
        return "steps"
    if count >= rules.min_steps and spent >= LEAST_SECONDS:
        width = middle_of(seconds[warmup_length(seconds) :]).width
        if width is not None and width <= rules.target_interval:
            return "interval"
    # a step that is slower than the whole time allowed is measured twice
    return "time" if spent >= rules.max_seconds and count >= min(2, rules.min_steps) else None


def check_durations(seconds: Sequence[float]) -> None:
    """Durations that cannot be are an error and never a result."""
    wrong = [value for value in seconds if not math.isfinite(value) or value <= 0]
    if wrong:
        raise ValueError(f"{len(wrong)} of {len(seconds)} durations are not positive numbers")


def figures(seconds: Sequence[float], name: str) -> dict[str, Any]:
    """Milliseconds of a part of the step, as columns."""
    middle = middle_of(seconds)
    return {
        f"{name}_ms": middle.median * 1e3,
        f"{name}_low_ms": None if middle.low is None else middle.low * 1e3,
        f"{name}_high_ms": None if middle.high is None else middle.high * 1e3,
    }


def spread_of(values: Sequence[float]) -> float | None:
    """Width of the middle half as that of a normal distribution, over the median; needs four samples."""
    if len(values) < 4:
        return None
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 1.349 / middle if middle > 0 else None

"""Which steps count: warm-up apart, outliers listed and not dropped, a verdict on steadiness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from detscope.analyze.figure import Figure
from detscope.analyze.stats import percent, robust_spread

UNSTABLE_SPREAD = 0.10
PART_STEPS = 8  # the least that a part of the run is judged by; a run has eight parts at most
OUTLIER_WIDTHS = 5.0  # robust standard deviations from the median
OUTLIER_LEAST = 0.25  # and at least this share above the median


class Steadiness(Figure, frozen=True, kw_only=True):
    """How far a series of durations can be trusted."""

    verdict: Literal["stable", "unstable", "error", "too few"]  # in a word
    reason: str  # in words
    spread: float | None  # relative, around the median


def warmup_length(durations: Sequence[float]) -> int:
    """Slow steps at the very beginning that the later ones do not share."""
    values = np.asarray(durations, dtype=float)
    if len(values) < 6:
        return 0
    settled = values[len(values) // 2 :]
    limit = upper_limit(settled)
    count = 0
    while count < len(values) // 2 and values[count] > limit:
        count += 1
    return count


def outlier_indices(durations: Sequence[float]) -> list[int]:
    """Steps far above the rest; they are listed with what was special about them."""
    if len(durations) < 6:
        return []
    limit = upper_limit(np.asarray(durations, dtype=float))
    return [index for index, value in enumerate(durations) if value > limit]


def upper_limit(values: np.typing.NDArray[np.float64]) -> float:
    """What lies above it is far from the rest."""
    middle = float(np.median(values))
    deviation = 1.4826 * float(np.median(np.abs(values - middle)))
    return middle + max(OUTLIER_WIDTHS * deviation, OUTLIER_LEAST * middle)


def judge_steadiness(durations: Sequence[float]) -> Steadiness:
    """The verdict on a series of step durations."""
    wrong = [value for value in durations if not math.isfinite(value) or value <= 0]
    if wrong:
        return Steadiness(
            verdict="error",
            reason=f"{len(wrong)} of {len(durations)} durations are not positive numbers",
            spread=None,
        )
    spread = robust_spread(durations)
    if spread is None:
        return Steadiness(
            verdict="too few",
            reason=f"{len(durations)} steps; four are the least to speak of a spread",
            spread=None,
        )
    if spread > UNSTABLE_SPREAD:
        reason = (
            f"steps spread by {percent(spread)} around the median; {percent(UNSTABLE_SPREAD)} is the limit"
        )
        return Steadiness(verdict="unstable", reason=reason, spread=spread)
    if (part := _unsteady_part(durations, spread)) is not None:
        return Steadiness(verdict="unstable", reason=part, spread=spread)
    return Steadiness(
        verdict="stable", reason=f"steps spread by {percent(spread, 1)} around the median", spread=spread
    )


def _unsteady_part(durations: Sequence[float], spread: float) -> str | None:
    """A part of the run that is not as the whole: the whole's spread does not show a bad last quarter."""
    parts = np.array_split(np.asarray(durations, dtype=float), min(8, len(durations) // PART_STEPS) or 1)
    middle = float(np.median(np.asarray(durations, dtype=float)))
    first = 0
    for part in parts if len(parts) > 1 else ():
        which = f"measured steps {first + 1} to {first + len(part)} of {len(durations)}"
        first += len(part)
        limit = UNSTABLE_SPREAD * (1 + 1.5 / math.sqrt(len(part)))  # few steps spread by chance as well
        own = robust_spread(part.tolist())
        if own is not None and own > limit:
            return f"{which} spread by {percent(own)} around their median, all of them by {percent(spread)}"
        apart = float(np.median(part)) / middle - 1
        if abs(apart) > limit:
            more = "longer" if apart > 0 else "less"
            return f"{which} take {percent(abs(apart))} {more} than the median of all"
    return None

"""Intervals that hold as often as they say: conformal, from errors on what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, log

import numpy as np
import numpy.typing as npt

from detscope.predict.models.solvers import non_negative_least_squares

Array = npt.NDArray[np.float64]
COVERAGE = 0.9
WIDEST = log(10)  # half of an interval where too little was measured to tell: a factor of ten
UNTESTED = log(2)  # at least, for other networks where only one was measured: assumed


def conformal_width(errors: Array, groups: Sequence[str], coverage: float = COVERAGE) -> float:
    """The error that a share of left-out rows stays within; every group weighs the same.

    Infinite where there are too few rows to tell.
    """
    count = len(errors)
    if not count or ceil((count + 1) * coverage) > count:
        return inf
    names, sizes = np.unique(np.array(groups), return_counts=True)
    weight = dict(zip(names.tolist(), (1 / sizes / len(names)).tolist(), strict=True))
    order = np.argsort(errors)
    reached = np.cumsum([weight[groups[place]] for place in order])
    place = int(np.searchsorted(reached, coverage * (1 + 1 / count) - 1e-12))
    return float(errors[order[min(place, count - 1)]])


def width_across(errors: Array, groups: Sequence[str], coverage: float = COVERAGE) -> float:
    """The same for a group that was not seen: of few groups the worst one's own share counts.

    Nine in ten of the groups to come are held by the largest of nine; with fewer, that is the best there is.
    """
    pooled = conformal_width(errors, groups, coverage)
    names = np.array(groups)
    each = [float(np.quantile(errors[names == name], coverage)) for name in np.unique(names)]
    return max(pooled, *each) if ceil((len(each) + 1) * coverage) > len(each) else pooled


def conformal_line(
    errors: Array, distances: Array, groups: Sequence[str], coverage: float = COVERAGE
) -> tuple[float, float]:
    """The same where errors grow with a distance: half width at none, and what it grows by per distance.

    Errors are divided by the line that fits them best, which is then raised until it holds the share.
    """
    columns = np.column_stack([np.ones(len(errors)), distances])
    line = non_negative_least_squares(columns, errors)
    usual = np.maximum(columns @ line, 1e-12)
    raised = conformal_width(errors / usual, groups, coverage)
    if raised == inf:
        return WIDEST, 0.0
    return float(raised * line[0]), float(raised * line[1])


def bounds(predicted: Array, half_width: Array) -> tuple[Array, Array]:
    """Lower and upper ends of the intervals."""
    return np.asarray(predicted * np.exp(-half_width)), np.asarray(predicted * np.exp(half_width))

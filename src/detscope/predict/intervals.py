"""Intervals that hold as often as they say: conformal, from errors on what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
COVERAGE = 0.9


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


def bounds(predicted: Array, half_width: Array) -> tuple[Array, Array]:
    """Lower and upper ends of the intervals."""
    return np.asarray(predicted * np.exp(-half_width)), np.asarray(predicted * np.exp(half_width))

"""Will it fit? A prediction with its interval against the device's usable limit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detscope.predict.samples import Array, StepSample

FITS, TOO_CLOSE, DOES_NOT_FIT = "fits", "too close to call", "does not fit"
NEVER_BEYOND = 0.1  # a prediction this far beyond the limit is no plain "fits", whatever the interval


def learn_limit(predicted: Array, passed: Sequence[bool]) -> float:
    """The limit that splits what ran from what did not with the fewest mistakes; the middle of equal ones.

    Infinite where everything ran: the limit lies beyond what was tried.
    """
    ran = np.asarray(passed, dtype=bool)
    if ran.all():
        return float("inf")
    ordered = np.unique(predicted)
    cuts = np.concatenate([[ordered[0] * 0.99], (ordered[1:] + ordered[:-1]) / 2, [ordered[-1] * 1.01]])
    wrong = np.array([((predicted <= cut) != ran).sum() for cut in cuts])
    best = cuts[wrong == wrong.min()]
    return float(np.median(best))


def decide_fit(predicted: float, limit: float, width: float) -> str:
    """One of three words; `width` is the interval's half width as a logarithm."""
    lower, upper = predicted * np.exp(-width), predicted * np.exp(width)
    if upper <= limit and predicted <= limit * (1 + NEVER_BEYOND):
        return FITS
    return DOES_NOT_FIT if lower > limit else TOO_CLOSE


def lean_towards(predicted: float, limit: float) -> str:
    """The better guess where it is too close to call."""
    return FITS if predicted <= limit else DOES_NOT_FIT


def keep_outcomes(samples: Sequence[StepSample]) -> list[StepSample]:
    """One sample per case: where it was tried several times, it ran if it ever did."""
    latest: dict[tuple[str, int, int], StepSample] = {}
    for one in samples:
        key = (one.network, one.level, one.case.batch)
        if key not in latest or one.passed:
            latest[key] = one
    return list(latest.values())

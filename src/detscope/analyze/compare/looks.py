"""Looking again and again at growing data: how much risk each look may take, so that all of them take 5 %.

Whoever tests after every round at 5 % finds a difference sooner or later. The risk is spent little at first
and most at the end (O'Brien and Fleming's function); a level for each look follows from how the sums of
rounds so far hang together (Lan and DeMets): the density of sums that no earlier look has stopped is carried
along.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from detscope.analyze.compare.change import RISK
from detscope.analyze.stats import Floats

_NORMAL = NormalDist()
_PLACES = 4001
_REACH = 8.0  # standard deviations


def spend_risk(share: float, risk: float = RISK) -> float:
    """How much of the risk may be used up when this share of the rounds is done; half of it on each side."""
    return 4 * (1 - _NORMAL.cdf(_NORMAL.inv_cdf(1 - risk / 4) / math.sqrt(share)))


def spend_evenly(share: float, risk: float = RISK) -> float:
    """As much of the risk as of the rounds: large changes are decided early, small ones later than else."""
    return risk * share


class RiskSpender:
    """The looks of one repeated comparison."""

    def __init__(
        self, most_rounds: int, risk: float = RISK, spend: Callable[[float, float], float] = spend_risk
    ) -> None:
        self._most = most_rounds
        self._risk, self._spend = risk, spend
        reach = _REACH * math.sqrt(most_rounds)
        self._sums: Floats = np.linspace(-reach, reach, _PLACES)
        self._density: Floats | None = None  # of sums that went on; None: nobody has looked
        self._rounds = 0
        self._spent = 0.0

    def take_look(self, rounds: int, is_last: bool) -> float:
        """The level of a test after so many rounds; whatever is left belongs to the last look."""
        total = self._risk if is_last else self._spend(rounds / self._most, self._risk)
        density = self._carry_density(rounds)
        width = float(self._sums[1] - self._sums[0])
        tails = 2 * np.cumsum(density[::-1])[::-1] * width  # beyond each sum, on both sides
        upper = self._sums >= 0
        # the sum that is exceeded with exactly the chance that this look may take
        border = float(np.interp(total - self._spent, tails[upper][::-1], self._sums[upper][::-1]))
        self._density = np.where(np.abs(self._sums) < border, density, 0.0)
        self._rounds, self._spent = rounds, total
        return 2 * (1 - _NORMAL.cdf(border / math.sqrt(rounds)))

    def _carry_density(self, rounds: int) -> Floats:
        """The density of sums after more rounds, each of variance 1."""
        if self._density is None:
            return self._draw_normal(self._sums, rounds)
        width = float(self._sums[1] - self._sums[0])
        found: Floats = np.convolve(
            self._density, self._draw_normal(self._sums, rounds - self._rounds) * width, mode="same"
        )
        return found

    @staticmethod
    def _draw_normal(places: Floats, variance: float) -> Floats:
        density: Floats = np.exp(-(places**2) / 2 / variance) / math.sqrt(2 * math.pi * variance)
        return density

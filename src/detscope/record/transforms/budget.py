"""Which batches are timed by transform: so few that timing takes a small share of a worker's time.

What timing costs does not depend on what a transform takes: a pipeline of small transforms would pay a large
share. So the cost is measured beside the work, and from both follows one batch in how many may be timed.
Which one is drawn: what recurs never falls on all that are timed. A timed batch stands for so many; sums of
timed batches, each times that number, are right on average for all of them, however the number changes.
"""

from __future__ import annotations

from random import Random

AIM = 0.001  # share of a worker's time, at what the clock sees of timing: a small part of what it costs
START_NS = 4_000_000  # that timing may cost at once, so that a short run has some batches


class TimingBudget:
    """What timing may cost in one process. Pure but for its chance."""

    def __init__(self, chance: Random | None = None) -> None:
        self._chance = chance or Random()  # a script's own numbers stay as they are
        self._worked_ns = self._batches = 0
        self._paid_ns = self._timed = 0

    @property
    def stands_for(self) -> int:
        """One batch in so many is timed now."""
        if not self._timed or self._paid_ns < START_NS:
            return 1
        each_ns, paid_ns = self._worked_ns / self._batches, self._paid_ns / self._timed
        return max(1, -int(-paid_ns // (AIM * max(1.0, each_ns))))

    def draw_batch(self) -> int:
        """For how many batches the coming one stands; 0: it is not timed."""
        many = self.stands_for
        return many if many == 1 or not self._chance.randrange(many) else 0

    def add_batch(self, worked_ns: int, paid_ns: int | None) -> None:
        """A batch was made in this time; what timing it cost, if it was timed."""
        if not self._batches:
            paid_ns = None  # of the first the transforms had to be found: that comes once
        self._batches += 1
        self._worked_ns += worked_ns
        if paid_ns is not None:
            self._timed += 1
            self._paid_ns += paid_ns

"""Steps that are worth drawing, which is only known when the run has ended: the slowest, the median one.

Kept are the slowest step so far, a sample of all (of a short run: all), and the last one recorded with its
memory; each as its events, so that memory is bounded and a step costs nothing until it is chosen.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median_low

from detscope.record.steps.device_account import DeviceMoment
from detscope.record.steps.schedule import MEMORY, RECORDED

SAMPLED_STEPS = 24  # the nearest to the median of so many lies within some per cent of the steps around it


@dataclass
class KeptEvents:
    """A step's events, and the moments of its marks where the device has a clock."""

    index: int
    start_ns: int
    end_ns: int
    events: array[int]
    on_device: Sequence[DeviceMoment] = ()

    @property
    def wall_ns(self) -> int:
        """Length of the step."""
        return self.end_ns - self.start_ns


class DrawnSteps:
    """Keeps the events of a bounded number of steps, and chooses among them in the end."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._walls_ns = array("q")  # of all steps with modules
        self._most_events = 0
        self._sample: list[KeptEvents] = []
        self._slowest: KeptEvents | None = None
        self._memory: KeptEvents | None = None
        self._random = Random(0)

    def offer_step(self, index: int, mode: str, start_ns: int, end_ns: int, events: Sequence[int]) -> None:
        """Keep a step, as far as it may be chosen."""
        if not self._wanted or mode not in (RECORDED, MEMORY):
            return
        if mode == MEMORY:
            self._memory = KeptEvents(index, start_ns, end_ns, array("q", events))
            return
        self._most_events = max(self._most_events, len(events))
        if 2 * len(events) < self._most_events:
            return  # of a long run most steps have phases alone: nothing to look into
        wall_ns = end_ns - start_ns
        self._walls_ns.append(wall_ns)
        place = self._random.randrange(len(self._walls_ns))  # each step is in the sample with the same chance
        is_slowest = self._slowest is None or wall_ns > self._slowest.wall_ns
        if len(self._sample) >= SAMPLED_STEPS and place >= SAMPLED_STEPS and not is_slowest:
            return
        kept = KeptEvents(index, start_ns, end_ns, array("q", events))
        if is_slowest:
            self._slowest = kept
        if len(self._sample) < SAMPLED_STEPS:
            self._sample.append(kept)
        elif place < SAMPLED_STEPS:
            self._sample[place] = kept

    def add_marks(self, index: int, moments: Sequence[DeviceMoment]) -> None:
        """The same step on the device's clock, which is known later."""
        for kept in self._all_kept():
            if kept.index == index:
                kept.on_device = moments

    def choose_steps(self) -> list[KeptEvents]:
        """The slowest, the one nearest to the median, one with memory; each once, in their order."""
        chosen = {kept.index: kept for kept in (self._slowest, self._memory) if kept is not None}
        if self._sample:
            middle_ns = median_low(self._walls_ns)
            nearest = min(self._sample, key=lambda kept: abs(kept.wall_ns - middle_ns))
            chosen[nearest.index] = nearest
        return [chosen[index] for index in sorted(chosen)]

    def _all_kept(self) -> Iterable[KeptEvents]:
        lone = (kept for kept in (self._slowest, self._memory) if kept is not None)
        return [*self._sample, *lone]

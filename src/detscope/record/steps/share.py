"""Which share of the steps is recorded where recording costs a lot: short steps of many modules.

What recording costs a step follows from how many events it has, not from how long it takes, and what is done
with them behind it is seen on the clock. After some steps so few are recorded that the cost, spread over all,
stays small; the others are bare.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from time import perf_counter_ns

AIM = 0.005  # of the time of all steps; a bare one has its own cost, about three times that
DENSE = 6  # steps that are recorded before it is asked: an interval of the median needs as many
DENSE_TRAINED = 12  # of a training: that is often shorter, and its steps differ more
_FIXED_EVENTS = 200  # as many as what is done before a recorded step takes: a border, probes on and off
# times as long as in a loop of its own: between a model's operators Python runs from cold caches. Steps told
# by their script, recorded ones beside bare ones behind bare ones: d_fine, 733 modules, 7 ms; yolos, 60, 0.45
_COLD = 20
_BEHIND = 3  # times what is done behind a step: the step after it finds caches cold (3 ms and 0.36)
_TRIED = 512
_CLOSINGS = 32  # that are looked back upon; the first one lays out what later ones find ready


class RecordingShare:
    """Told of recorded steps; says one in how many is to be recorded. Pure but for the cost of an event."""

    def __init__(self, event_ns: float) -> None:
        self._event_ns = event_ns
        self._steps = self._events = self._spent_ns = 0
        self._closings_ns: deque[int] = deque(maxlen=_CLOSINGS)

    def add_step(self, events: int, spent_ns: int, closing_ns: int) -> None:
        """A step was recorded; behind it, so long was spent on what was heard."""
        self._steps += 1
        self._events += events + _FIXED_EVENTS
        self._spent_ns += spent_ns
        self._closings_ns.append(closing_ns)

    def one_in(self, dense: int = DENSE) -> int:
        """One step in so many; 1: as the schedule has it, of the first `dense` at least."""
        if self._steps < dense or not self._event_ns:
            return 1
        behind_ns = _BEHIND * median(self._closings_ns)
        paid_ns = self._events / self._steps * self._event_ns + behind_ns
        return max(1, -int(-paid_ns // (AIM * max(1.0, self._spent_ns / self._steps))))


def measure_event_ns() -> float:
    """What an event of a step under way takes on this machine, roughly."""
    items: list[int] = []
    fastest = 10**9
    for _ in range(3):  # whatever else ran meanwhile is in the others
        begun_ns = perf_counter_ns()
        for _ in range(_TRIED):
            items.extend((1, perf_counter_ns(), -1))
        fastest = min(fastest, perf_counter_ns() - begun_ns)
        items.clear()
    return _COLD * fastest / _TRIED

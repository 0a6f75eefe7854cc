"""Which share of the steps is recorded where recording costs a lot: short predictions of many modules.

What recording costs a step follows from how many events it has, not from how long it takes. A training step
is long enough. A prediction of some milliseconds is not: after a few of them, so few are recorded that the
cost, spread over all steps, stays small; the others are bare.
"""

from __future__ import annotations

from time import perf_counter_ns

AIM = 0.01  # of the time of all steps
DENSE = 6  # steps that are recorded before it is asked: an interval of the median needs as many
_FIXED_EVENTS = 800  # as many as what is done once per recorded step takes: two borders, probes on and off
_COLD = 5  # times as long as in a loop of its own: between a model's operators Python runs from cold caches
_TRIED = 512


class RecordingShare:
    """Told of recorded steps; says one in how many is to be recorded. Pure but for the cost of an event."""

    def __init__(self, event_ns: float) -> None:
        self._event_ns = event_ns
        self._steps = self._events = self._spent_ns = 0

    def add_step(self, events: int, spent_ns: int) -> None:
        """A step was recorded."""
        self._steps += 1
        self._events += events + _FIXED_EVENTS
        self._spent_ns += spent_ns

    @property
    def one_in(self) -> int:
        """One step in so many; 1: as the schedule has it."""
        if self._steps < DENSE:
            return 1
        return max(1, -int(-self._events * self._event_ns // (AIM * max(1, self._spent_ns))))


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

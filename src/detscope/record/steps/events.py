"""The event buffer: the only thing the hot path writes to.

A flat list of integers, `WIDTH` per event: code, time in ns, autograd sequence number. The code is the node's
number, shifted, and what happened to it. Flat integers are the cheapest thing Python can write (about 0.2 us
per event) and are turned into tables between steps, never inside one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from time import perf_counter_ns, process_time_ns
from typing import NamedTuple

from detscope.record.device.clock import DeviceMark

CODE, TIME, SEQUENCE = range(3)  # what an event's integers are,
WIDTH = 3  # and how many there are
ENTER, EXIT, MARK = range(3)  # what happened to a node, in the lowest bits of the code
NODE_SHIFT = 2
ACTION_MASK = (1 << NODE_SHIFT) - 1
NO_SEQUENCE = -1  # of phases and marks, and where no graph is built
STEP_BEGINS, BATCH_ARRIVED, STEP_ENDS = -1, -2, -3  # codes of processor marks besides those of phases
SPAN_PREFIX = "detscope#"  # names of our spans in torch.profiler, followed by the node's number


class EventStretch(NamedTuple):
    """Neighbouring events, and the marks of those that have one."""

    items: list[int]
    handles: list[DeviceMark | None]


def encode_event(number: int, action: int) -> int:
    """The code of a node and what happens to it."""
    return number << NODE_SHIFT | action


def decode_events(events: Sequence[int], backwards: bool = False) -> Iterator[tuple[int, int, int, int]]:
    """Node, action, time and sequence number of every event; for loops that are not hot."""
    places = range(0, len(events), WIDTH)
    for place in reversed(places) if backwards else places:
        code, time_ns, sequence = events[place : place + WIDTH]
        yield code >> NODE_SHIFT, code & ACTION_MASK, time_ns, sequence


class Marker:
    """Puts marks where they are wanted; `wanted` holds codes of begins of nodes."""

    def __init__(self, record: Callable[[], DeviceMark | None], wanted: Collection[int]) -> None:
        self._record = record
        self.wanted = wanted
        self.active = True  # not in steps whose operators are recorded

    def record(self) -> DeviceMark | None:
        """A mark, or none."""
        return self._record() if self.active else None


class EventBuffer:
    """Collects events of the current step; one per recorder."""

    def __init__(self, marker: Marker | None = None, now: Callable[[], int] | None = None) -> None:
        self.items: list[int] = []
        self.handles: list[DeviceMark | None] = []  # one per event, where a device has a clock
        self.processor: list[int] = []  # pairs of a code and the process's processor time, for rare events
        self.marker = marker
        self.find_exchange: Callable[[], int] | None = None  # the code of waiting for other ranks
        self.now = now or perf_counter_ns

    def add_event(self, code: int) -> int:
        """Write one event and return its time; for rare events, not for the hot path."""
        time_ns = self.now()
        self.items.extend((code, time_ns, NO_SEQUENCE))
        if self.marker is not None:
            self.handles.append(self.marker.record())
        self.processor.extend((code, process_time_ns()))
        return time_ns

    def mark_processor(self, code: int) -> list[int]:
        """Note processor time at a border of the step; hands over all marks when it begins or ends one."""
        marks = self.processor
        marks.extend((code, process_time_ns()))
        if code in (STEP_BEGINS, STEP_ENDS):
            self.processor = marks[-2:]
        return marks

    def enter_node(self, number: int) -> int:
        """A node begins."""
        return self.add_event(number << NODE_SHIFT | ENTER)

    def exit_node(self, number: int) -> int:
        """A node ends."""
        return self.add_event(number << NODE_SHIFT | EXIT)

    def prolong_node(self, place: int, number: int, inner: int, sequences: tuple[int, int]) -> None:
        """A node whose end stands at `place` goes on until now: since then, it turns out, `inner` ran in it.

        Sequence numbers are those of autograd then and now.
        """
        left = encode_event(number, EXIT)
        self.items[place], self.items[place + SEQUENCE] = encode_event(inner, ENTER), sequences[0]
        for at in range(len(self.processor) - 2, -1, -2):
            if self.processor[at] == left:
                del self.processor[at : at + 2]
                break
        self.items.extend((encode_event(inner, EXIT), self.now(), sequences[1]))
        if self.marker is not None:
            self.handles.append(None)  # the mark that follows is at the same place
        self.add_event(left)

    def take_events(self, begin: int = 0, end: int | None = None) -> EventStretch:
        """Hand over what was collected, or a part of it; the lists themselves stay, hooks hold on to them."""
        end = len(self.items) if end is None else end
        marked = slice(begin // WIDTH, end // WIDTH)
        taken = EventStretch(self.items[begin:end], self.handles[marked])
        del self.items[begin:end], self.handles[marked]
        return taken

    def put_events(self, stretch: EventStretch) -> None:
        """Append events that came from another buffer, or from this one."""
        self.items.extend(stretch.items)
        if self.marker is not None:
            self.handles.extend(stretch.handles or [None] * (len(stretch.items) // WIDTH))

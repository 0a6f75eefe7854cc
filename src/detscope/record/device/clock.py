"""A device's clock: marks in its queues, taken from a pool and read only when the device has passed them.

Nothing here waits inside a step. While a graph is captured, and once the device has failed for good, there
are no marks at all: a program must not notice us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

from detscope.faults import error_text
from detscope.machine.accelerator import Accelerator

_COST_MARKS = 16  # put one after the other to learn what one costs the host


class DeviceMark(NamedTuple):
    """Something that a device has passed or will pass."""

    event: Any
    stream: int


class DeviceClock:
    """Puts marks into the current stream, and says when the device passed them, in the host's time."""

    def __init__(self, accelerator: Accelerator, now: Callable[[], int] | None = None) -> None:
        self._accelerator = accelerator
        self._now = now or perf_counter_ns
        self._pool: list[Any] = []
        self._anchor: tuple[DeviceMark, int] | None = None  # a mark, and when the device passed it
        self.failure: str | None = None  # why it tells nothing any more
        self.mark_cost_ns = 0  # of the host, for one mark

    def record(self) -> DeviceMark | None:
        """Put a mark into the queue of the current stream; None where that must not or cannot be done."""
        accelerator = self._accelerator
        if not self.can_ask():
            return None
        try:
            event = self._pool.pop() if self._pool else accelerator.make_mark()
            stream = accelerator.put_mark(event)
        except RuntimeError as error:  # the program's own fault comes back to it with its next call
            self.give_up(error)
            return None
        return DeviceMark(event, stream)

    def give_up(self, error: BaseException) -> None:
        """The device answers nothing any more."""
        first, *_ = [*error_text(error).strip().splitlines(), type(error).__name__]
        self.failure = self.failure or f"the device failed: {first[:200]}"

    def can_ask(self) -> bool:
        """Whether the device may be asked now: not while this thread captures a graph."""
        if self.failure is not None:
            return False
        try:
            return not self._accelerator.is_capturing()
        except RuntimeError as error:  # a device that has failed does not even say that
            self.give_up(error)
            return False

    def set_anchor(self) -> None:
        """Let both clocks see one moment, and learn what a mark costs; waits, so only between steps."""
        if self._anchor is not None or not self.can_ask():
            return
        try:
            self._accelerator.wait()
            begin_ns = self._now()
            marks = [mark for mark in (self.record() for _ in range(_COST_MARKS)) if mark is not None]
            self.mark_cost_ns = (self._now() - begin_ns) // _COST_MARKS
            self._accelerator.wait()
            last = self.record()  # the queue is empty: the device passes it as it comes
            passed_ns = self._now()
            self._accelerator.wait()
        except RuntimeError as error:
            self.give_up(error)
            return
        self.recycle_marks(marks)
        if last is not None:
            self._anchor = (last, passed_ns)

    def have_passed(self, marks: Iterable[DeviceMark | None]) -> bool:
        """Whether the device has passed all of them; of each stream the last one is asked."""
        last = {mark.stream: mark.event for mark in marks if mark is not None}
        try:
            return all(self._accelerator.has_passed(event) for event in last.values())
        except RuntimeError as error:
            self.give_up(error)
            return True

    def place_marks(self, marks: Sequence[DeviceMark]) -> list[int] | None:
        """When the device passed these marks, in the host's time; None if it does not say.

        The first becomes the anchor of what follows: a device tells short times finely, long ones coarsely.
        """
        if self._anchor is None or self.failure is not None or not marks:
            return None
        anchor, passed_ns = self._anchor
        elapsed = self._accelerator.elapsed_ns
        try:
            first_ns = passed_ns + elapsed(anchor.event, marks[0].event)
            found = [first_ns, *(first_ns + elapsed(marks[0].event, mark.event) for mark in marks[1:])]
        except (RuntimeError, ValueError) as error:  # a mark that was never passed is the one or the other
            self.give_up(error)
            return None
        self._pool.append(anchor.event)
        self._anchor = (marks[0], first_ns)
        return found

    def wait_for_device(self) -> None:
        """Wait for everything queued; only when the recording ends."""
        if not self.can_ask():
            return
        try:
            self._accelerator.wait()
        except RuntimeError as error:
            self.give_up(error)

    def recycle_marks(self, marks: Iterable[DeviceMark | None]) -> None:
        """Give marks back for reuse; the anchor stays."""
        kept = None if self._anchor is None else self._anchor[0].event
        self._pool.extend(mark.event for mark in marks if mark is not None and mark.event is not kept)

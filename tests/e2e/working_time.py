"""A process in which detscope's time is the work of its main thread, and what that thread sleeps.

However long others hold a thread up, no time passes for detscope meanwhile. Looks at the running function are
as far apart in that time as otherwise in the system's, and a sleep goes on when a look that fell into it has
been taken.
"""

from __future__ import annotations

import atexit
import threading
import time
from contextlib import ExitStack
from math import inf
from types import SimpleNamespace

from detscope.record.script import other
from simulated.clock import WorkingClock, product_reads

PIECE_NS = 1_000_000  # of a sleep: a look falls between two
POLL_S = 0.001  # of the system's time: how soon it is seen that work went on


class LookTimes:
    """When the thread that looks is due; it has one moment at a time, or none while it waits for nothing."""

    def __init__(self, clock: WorkingClock) -> None:
        self._clock = clock
        self._due_ns = inf
        self._moved = threading.Condition()

    def sleep_working(self, seconds: float) -> None:
        """For the main thread: nothing but time passes, and looks that are due in it are taken in it."""
        ends_ns = self._clock.now() + round(seconds * 1e9)
        while (left_ns := ends_ns - self._clock.now()) > 0:
            with self._moved:
                self._clock.sleep(min(left_ns, PIECE_NS))
                self._moved.notify_all()
                while self._due_ns <= self._clock.now():
                    self._moved.wait()

    def wait_until_due(self, event: LookEvent, seconds: float) -> bool:
        """For the thread that looks; as `Event.wait`."""
        with self._moved:
            self._due_ns = self._clock.now() + seconds * 1e9
            self._moved.notify_all()
            while self._clock.now() < self._due_ns and not event.is_set():
                self._moved.wait(POLL_S)
            if event.is_set():
                self._due_ns = inf
            return event.is_set()

    def rest(self, resting: bool) -> None:
        """Nothing is due until somebody wakes the thread that looks; then it looks at once."""
        with self._moved:
            self._due_ns = inf if resting else 0
            self._moved.notify_all()


class LookEvent(threading.Event):
    """What the thread that looks waits for: its limits are of the working time."""

    def __init__(self, times: LookTimes) -> None:
        super().__init__()
        self._times = times
        self._awaited = False
        self._turn = threading.Lock()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            return self._times.wait_until_due(self, timeout)
        with self._turn:
            self._awaited = not self.is_set()
            if self._awaited:
                self._times.rest(True)
        return super().wait()

    def set(self) -> None:
        with self._turn:
            if self._awaited:
                self._times.rest(False)
            self._awaited = False
            super().set()


def live_on_working_time() -> None:
    """From now on until this process ends."""
    clock, plain = WorkingClock(), time.sleep
    main, times = threading.get_ident(), LookTimes(clock)

    def sleep(seconds: float) -> None:
        if threading.get_ident() == main:
            times.sleep_working(seconds)
        else:
            plain(seconds)

    for function in (sleep, LookTimes.sleep_working):  # as Python's own: of nobody's code
        function.__code__ = function.__code__.replace(co_filename="<time>")
    for_looks = SimpleNamespace(Event=lambda: LookEvent(times))
    other.threading = for_looks  # type: ignore[assignment]
    time.sleep = sleep
    lasting = ExitStack()
    lasting.enter_context(product_reads(clock))
    atexit.register(lasting.close)

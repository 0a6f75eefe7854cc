"""What a worker does outside of all named parts: a timer looks which function is running.

Looks are close together at first, which is enough for a short run, and only while a batch is made: waking up
costs more than looking. Then they are as far apart as their own processor time wants it.
"""

from __future__ import annotations

import random
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns
from types import FrameType
from typing import TYPE_CHECKING

from detscope.record.code_lines import PACKAGES, locate_frame
from detscope.record.foreign import UnlistedThread

if TYPE_CHECKING:
    from detscope.record.transforms.timer import TimedPart

PERIOD_S, FIRST_PERIOD_S = 0.01, 0.002  # between two looks, on average
FIRST_NS = 4_000_000  # of a processor's time, for the first
AIM = 0.001  # share of a worker's time, at what the thread itself takes; who gives way to it pays too
_RECORD = str(Path(__file__).parents[1])  # our stand-ins: whoever called them is not looked for
_BELOW = tuple(f"{PACKAGES}{name}/" for name in ("torch", "numpy"))
_LIBRARY = tuple({*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")), "<"})

LooksInside = tuple[tuple[str | None, str, str, int], ...]  # part, function, file:line, times


class CodeLooks:
    """A thread that counts places; it sleeps while no batch is made."""

    def __init__(self, find_place: Callable[[], tuple[int, TimedPart | None] | None]) -> None:
        self._find_place = find_place
        self._end, self._awake = threading.Event(), threading.Event()
        self._thread: UnlistedThread | None = None
        self._seen: Counter[tuple[str | None, str, str]] = Counter()

    def begin_looking(self) -> None:
        """A batch is being made."""
        if self._thread is None:
            self._thread = UnlistedThread(self._run_thread)
            self._thread.start()
        self._awake.set()

    def pause_looking(self) -> None:
        """It has been made."""
        self._awake.clear()

    def stop_looking(self) -> None:
        """Look no more."""
        self._end.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join()

    def take_looks(self) -> LooksInside:
        """Places seen since it was asked last."""
        seen, self._seen = self._seen, Counter()
        return tuple((*place, times) for place, times in seen.items())

    def _run_thread(self) -> None:
        chance = random.Random()  # a script's own numbers stay as they are
        turns = spent_ns = 0
        while True:
            self._awake.wait()
            period_s = FIRST_PERIOD_S
            if spent_ns > FIRST_NS:
                period_s = max(PERIOD_S, spent_ns / turns / AIM / 1e9)
            # at random: what comes at a batch's beginning is seen as often as what comes at its end
            if self._end.wait(chance.uniform(0, 2 * period_s)):
                return
            turns += 1
            self._look_once()
            spent_ns = thread_time_ns()

    def _look_once(self) -> None:
        place = self._find_place()
        if place is None:
            return
        thread, part = place
        seen = locate_work(sys._current_frames().get(thread))
        if seen is not None and self._find_place() == place:
            self._seen[None if part is None else part.name, *seen] += 1


def locate_work(frame: FrameType | None) -> tuple[str, str] | None:
    """The innermost function that is neither Python's, torch's nor numpy's, and its line.

    Where there is none, the innermost of all. Frames below our own are whoever asked for the batch.
    """
    innermost = frame
    while frame is not None and not frame.f_code.co_filename.startswith(_RECORD):
        file = frame.f_code.co_filename
        if not any(below in file for below in _BELOW) and (PACKAGES in file or not file.startswith(_LIBRARY)):
            return _tell_frame(frame)
        frame = frame.f_back
    if innermost is None or innermost.f_code.co_filename.startswith(_RECORD):
        return None
    return _tell_frame(innermost)


def _tell_frame(frame: FrameType) -> tuple[str, str]:
    function, file, line = locate_frame(frame)
    return function, f"{file}:{line}"

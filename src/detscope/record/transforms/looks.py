"""What a worker does outside of all named parts: a timer looks which function is running."""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from detscope.record.script.other import LookPace

if TYPE_CHECKING:
    from detscope.record.transforms.timer import TimedPart

_RECORD = str(Path(__file__).parents[1])  # our stand-ins: whoever called them is not looked for
_PACKAGES = "-packages/"  # site-packages, dist-packages
_BELOW = tuple(f"{_PACKAGES}{name}/" for name in ("torch", "numpy"))
_LIBRARY = tuple({*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")), "<"})

LooksInside = tuple[tuple[str | None, str, str, int], ...]  # part, function, file:line, times


class CodeLooks:
    """A thread that counts places; it sleeps while there is nothing to look at."""

    def __init__(self, find_place: Callable[[], tuple[int, TimedPart | None] | None]) -> None:
        self._find_place = find_place
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: Counter[tuple[str | None, str, str]] = Counter()

    def keep_looking(self) -> None:
        """Look, if that has not begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_thread, name="detscope-looks", daemon=True)
            self._thread.start()

    def stop_looking(self) -> None:
        """Look no more."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def take_looks(self) -> LooksInside:
        """Places seen since it was asked last."""
        seen, self._seen = self._seen, Counter()
        return tuple((*place, times) for place, times in seen.items())

    def _run_thread(self) -> None:
        pace = LookPace()
        while not self._end.wait(pace.period_s):
            pace.count_turn(self._look_once())

    def _look_once(self) -> bool:
        place = self._find_place()
        if place is None:
            return False
        thread, part = place
        seen = locate_work(sys._current_frames().get(thread))
        if seen is not None and self._find_place() == place:
            self._seen[None if part is None else part.name, *seen] += 1
        return True


def locate_work(frame: FrameType | None) -> tuple[str, str] | None:
    """The innermost function that is neither Python's, torch's nor numpy's, and its line.

    Where there is none, the innermost of all. Frames below our own are whoever asked for the batch.
    """
    innermost = frame
    while frame is not None and not frame.f_code.co_filename.startswith(_RECORD):
        file = frame.f_code.co_filename
        if not any(below in file for below in _BELOW) and (
            _PACKAGES in file or not file.startswith(_LIBRARY)
        ):
            return _tell_frame(frame)
        frame = frame.f_back
    if innermost is None or innermost.f_code.co_filename.startswith(_RECORD):
        return None
    return _tell_frame(innermost)


def _tell_frame(frame: FrameType) -> tuple[str, str]:
    code = frame.f_code
    _, packages, below = code.co_filename.rpartition(_PACKAGES)
    file = below if packages else Path(code.co_filename).name
    return code.co_qualname, f"{file}:{frame.f_lineno or code.co_firstlineno}"

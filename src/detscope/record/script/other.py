"""Where `other` goes: while no phase runs, a timer looks which of the script's functions is running.

Ten milliseconds lie between two looks, each of some microseconds and only outside of all phases.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

PERIOD_S = 0.01
_LIBRARIES = tuple(
    {*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")), "<"}
)
_OWN = str(Path(__file__).parents[2])
_SHOWN = 8


class Place(NamedTuple):
    """A line of the script's code."""

    function: str
    file: str
    line: int


class OtherSampler:
    """A thread that asks `whose` which thread to look at (None: a phase is running) and counts places."""

    def __init__(self, whose: Callable[[], int | None]) -> None:
        self._whose = whose
        self._end = threading.Event()
        self._awake = threading.Event()
        self._awake.set()
        self._thread = threading.Thread(target=self._run, name="detscope-other", daemon=True)
        self._pending: list[Place] = []
        self.places: Counter[Place] = Counter()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._end.set()
        self._awake.set()
        if self._thread.is_alive():
            self._thread.join()

    def hold(self, asleep: bool) -> None:
        """Sleep through the coming step, which is compared with those that were looked at; or wake up."""
        if asleep:
            self._awake.clear()
        else:
            self._awake.set()

    def take_step(self, counts: bool) -> None:
        """A step has ended: what was seen in it counts, or does not."""
        pending, self._pending = self._pending, []
        if counts:
            self.places.update(pending)

    def look(self) -> None:
        """See once which of the script's functions is running."""
        thread = self._whose()
        if thread is None:
            return
        place = place_of(sys._current_frames().get(thread))
        if place is not None and self._whose() is not None:
            self._pending.append(place)

    def _run(self) -> None:
        while not self._end.wait(PERIOD_S):
            self._awake.wait()
            self.look()

    def rows(self, other_ms: float | None) -> list[dict[str, Any]]:
        """The script's functions by their share of `other`, with the line that was seen most."""
        by_function: dict[tuple[str, str], Counter[int]] = {}
        for place, times in self.places.items():
            by_function.setdefault((place.function, place.file), Counter())[place.line] += times
        whole = sum(self.places.values())
        ordered = sorted(by_function.items(), key=lambda item: -sum(item[1].values()))
        rows = []
        for (function, file), lines in ordered[:_SHOWN]:
            share = sum(lines.values()) / whole
            row: dict[str, Any] = {"function": function, "file": file, "line": lines.most_common(1)[0][0]}
            row |= {"share_of_other": share, "looks": sum(lines.values())}
            row["ms"] = None if other_ms is None else share * other_ms
            rows.append(row)
        return rows


def place_of(frame: FrameType | None) -> Place | None:
    """The innermost frame that is the script's own and not a library's; else the outermost of all."""
    last = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OWN):
            last = frame
            if not name.startswith(_LIBRARIES) and "-packages" not in name:
                break
        frame = frame.f_back
    if last is None:
        return None
    code = last.f_code
    return Place(code.co_qualname, Path(code.co_filename).name, last.f_lineno or code.co_firstlineno)

"""Where in the code an operator was called, and how often within one call of that function."""

from __future__ import annotations

from collections import Counter
from types import CodeType, FrameType
from typing import NamedTuple

from detscope.record.code_lines import CodeLine, find_frames, locate_frame


class Site(NamedTuple):
    """A place in the code: the innermost line outside of torch, and the script's own that led there."""

    line: CodeLine
    own: CodeLine | None  # None where it is the same
    file: str  # of the innermost line, as it can be opened


# frames of their own up to Python 3.11: they belong to the function that they are written in
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
NOWHERE = Site(CodeLine("", "", 0), None, "")


class SiteFinder:
    """Finds sites; functions that are under way are held for as long as they run, to tell calls apart."""

    def __init__(self) -> None:
        self._known: dict[tuple[CodeType, int], CodeLine] = {}
        self._calls: list[tuple[FrameType, Counter[object]]] = []
        self.most: Counter[object] = Counter()  # of one key within one call of its function

    def find_site(self, frame: FrameType | None) -> tuple[Site, FrameType | None]:
        """Where this is, and the function that it is in."""
        found = find_frames(frame)
        if found is None:
            return NOWHERE, None
        own, inside = found
        innermost = inside or own
        line = self._locate(innermost)
        while innermost.f_code.co_name in _COMPREHENSIONS and _is_called_beside(innermost):
            innermost = innermost.f_back  # type: ignore[assignment]  # it is there
            line = line._replace(function=innermost.f_code.co_qualname)
        outer = None if inside is None else self._locate(own)
        return Site(line, outer, innermost.f_code.co_filename), innermost

    def _locate(self, frame: FrameType) -> CodeLine:
        key = (frame.f_code, frame.f_lineno)
        line = self._known.get(key)
        if line is None:
            line = self._known[key] = locate_frame(frame)
        return line

    def count_in_call(self, frame: FrameType | None, key: object) -> None:
        """Count within the function that is under way."""
        if frame is None:
            return
        self.end_calls(still=frame)
        for held, counted in self._calls:
            if held is frame:
                counted[key] += 1
                return
        self._calls.append((frame, Counter([key])))

    def end_calls(self, still: FrameType | None = None) -> None:
        """Let functions go that have returned: their frames would keep what they hold alive."""
        kept, running = [], set()
        while still is not None:
            running.add(id(still))
            still = still.f_back
        for held, counted in self._calls:
            if id(held) in running:
                kept.append((held, counted))
                continue
            for key, count in counted.items():
                self.most[key] = max(self.most[key], count)
        self._calls = kept


def _is_called_beside(frame: FrameType) -> bool:
    return frame.f_back is not None and frame.f_back.f_code.co_filename == frame.f_code.co_filename

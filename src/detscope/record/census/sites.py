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


NOWHERE = Site(CodeLine("", "", 0), None, "")


class SiteFinder:
    """Finds sites; functions that are under way are held for as long as they run, to tell calls apart."""

    def __init__(self) -> None:
        self._known: dict[tuple[CodeType, int], CodeLine] = {}
        self._calls: list[tuple[FrameType, Counter[object]]] = []
        self.most: Counter[object] = Counter()  # of one key within one call of its function

    def find_site(self, frame: FrameType) -> tuple[Site, FrameType | None]:
        """Where this is, and the function that it is in."""
        found = find_frames(frame)
        if found is None:
            return NOWHERE, None
        own, inside = found
        innermost = inside or own
        line = self._locate(innermost)
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
        kept = []
        for held, counted in self._calls:
            if still is not None and (held is still or held.f_back is not None):
                kept.append((held, counted))
                continue
            for key, count in counted.items():
                self.most[key] = max(self.most[key], count)
        self._calls = kept

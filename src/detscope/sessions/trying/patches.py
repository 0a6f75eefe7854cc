"""Unified diffs, read and applied to text. Own code: git may be missing, and `patch` guesses and asks.

A hunk may have moved; its lines must be there as the diff says. Nothing here touches a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from detscope.errors import InputError

NO_FILE = "/dev/null"
_HUNK = re.compile(r"^@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@")
_UNKNOWN = (
    "rename from ",
    "copy from ",
    "GIT binary patch",
    "Binary files ",
    "new file mode 12",
    "new mode 12",
)


@dataclass
class Hunk:
    """Lines that stand somewhere, and those that take their place; without their ends."""

    header: str
    start: int  # line of the file, from 0
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    changes: bool = False  # it has lines that go or come
    bare_end: bool = False  # the last line of `after` has no end


@dataclass
class FilePatch:
    """What a diff does to one file."""

    old: str  # as the diff names it; NO_FILE of a new one
    new: str  # NO_FILE of one that goes
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The file's name, without git's `a/` and `b/`."""
        if self.old != NO_FILE and self.new != NO_FILE and self.old[:2] == "a/" and self.new[:2] == "b/":
            return self.new[2:]
        named = self.new if self.new != NO_FILE else self.old
        return named[2:] if named[:2] in ("a/", "b/") else named


def read_patch(text: str, name: str) -> list[FilePatch]:
    """The files that a diff changes; one that says nothing, or what is not understood, is refused."""
    found: list[FilePatch] = []
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith(_UNKNOWN):
            raise InputError(
                f"{name}: line {at + 1}: {line[:60]!r} is not understood", "text that changes is"
            )
        following = lines[at + 1] if at + 1 < len(lines) else ""
        if line.startswith("--- ") and following.startswith("+++ "):
            found.append(FilePatch(_read_name(line), _read_name(following)))
            at += 2
        elif line.startswith("@@ ") and found:
            at = _read_hunk(lines, at, found[-1], name)
        else:
            at += 1
    if not any(one.hunks for one in found):
        raise InputError(f"{name} is no unified diff", "make one: git diff > FILE, or diff -u OLD NEW > FILE")
    if not any(hunk.changes for one in found for hunk in one.hunks):
        raise InputError(f"{name} changes nothing", "a diff has lines that begin with - or +")
    return found


def _read_name(line: str) -> str:
    return line[4:].split("\t")[0].strip().strip('"')


def _read_hunk(lines: Sequence[str], at: int, file: FilePatch, name: str) -> int:
    """One hunk by the counts in its head; where the next thing begins."""
    match = _HUNK.match(lines[at])
    if match is None:
        raise InputError(f"{name}: line {at + 1} is no head of a hunk: {lines[at][:60]!r}", "make it anew")
    left, right = (int(match[group] or 1) for group in (2, 3))
    hunk = Hunk(match[0], int(match[1]) - (1 if left else 0))
    at += 1
    while len(hunk.before) < left or len(hunk.after) < right or lines[at : at + 1] == [_BARE]:
        if at >= len(lines) or lines[at][:1] not in (" ", "+", "-", "\\", ""):
            raise InputError(f"{name}: hunk {hunk.header} of {file.name} is cut short", "make it anew")
        kind, content = lines[at][:1] or " ", lines[at][1:]  # mail takes the blank from an empty line
        if kind == "\\":
            hunk.bare_end = lines[at - 1][:1] in (" ", "+")
        hunk.changes |= kind in ("+", "-")
        if kind in (" ", "-"):
            hunk.before.append(content)
        if kind in (" ", "+"):
            hunk.after.append(content)
        at += 1
    file.hunks.append(hunk)
    return at


_BARE = "\\ No newline at end of file"


def apply_patch(text: str, file: FilePatch, name: str) -> str:
    """The text of a file with all hunks of it."""
    ended = text.splitlines(keepends=True)
    newline = "\r\n" if ended and ended[0].endswith("\r\n") else "\n"
    lines = [line.rstrip("\r\n") for line in ended]
    ends = [line[len(line.rstrip("\r\n")) :] for line in ended]
    shift, done = 0, 0
    for number, hunk in enumerate(file.hunks, start=1):
        place = next(_find_places(lines, hunk, hunk.start + shift, done), None)
        if place is None:
            raise InputError(
                f"{name}: hunk {number} ({hunk.header}) of {file.name} does not apply",
                _explain(lines, hunk, hunk.start + shift),
            )
        stop = place + len(hunk.before)
        lines[place:stop] = hunk.after
        ends[place:stop] = [newline] * len(hunk.after)
        if hunk.bare_end and place + len(hunk.after) == len(lines):
            ends[-1] = ""
        shift = place - hunk.start + len(hunk.after) - len(hunk.before)
        done = place + len(hunk.after)
    return "".join(line + end for line, end in zip(lines, ends, strict=True))


def _find_places(lines: Sequence[str], hunk: Hunk, wanted: int, done: int) -> Iterator[int]:
    """Where the hunk's lines stand, the nearest to where they should be first, behind the hunks before."""
    last = len(lines) - len(hunk.before)
    places = [place for place in range(done, last + 1) if hunk.before or place == min(wanted, last)]
    for place in sorted(places, key=lambda place: abs(place - wanted)):
        if lines[place : place + len(hunk.before)] == hunk.before:
            yield place


def _explain(lines: Sequence[str], hunk: Hunk, wanted: int) -> str:
    """What may be the reason."""
    after = "\n".join(hunk.after)
    if after and after in "\n".join(lines):
        return "it seems to be in the file already"
    missing = next((line for line in hunk.before if line not in lines), None)
    if missing is not None:
        return f"the file has no line {missing.strip()[:80]!r}"
    return f"its lines do not stand together near line {wanted + 1}"

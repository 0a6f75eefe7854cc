"""NVTX ranges: what they mean, and which of them a launch lies in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# as torch.autograd.profiler.emit_nvtx writes them: "aten::add, seq = 12, op_id = 314290"
_OPERATOR = re.compile(r"^(?P<name>[^,]+?)(?:, seq = (?P<sequence>\d{1,18}))?(?:, op_id = \d+.*)$")
_SEQUENCE_ONLY = re.compile(r"^(?P<name>[^,]+?), seq = (?P<sequence>\d{1,18})\b")
_STEP = re.compile(
    r"^(?:detscope:step[ :#]*|ProfilerStep ?#|(?:training |train |inference )?(?:step|iteration|iter)[ :_#]*)"
    r"(?P<number>\d{1,15})$",
    re.IGNORECASE,
)
_PHASE = re.compile(r"^detscope:phase[ :](?P<name>\w+)$")

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class RangeMeaning:
    """What a range's text says: kind of host event, name, autograd sequence number, step number."""

    kind: str
    name: str
    sequence: int | None = None
    step: int | None = None


def read_meaning(text: str) -> RangeMeaning:
    """Read the text of a range."""
    if step := _STEP.match(text):
        return RangeMeaning("step", text, step=int(step["number"]))
    if phase := _PHASE.match(text):
        return RangeMeaning("phase", phase["name"])
    if operator := _OPERATOR.match(text) or _SEQUENCE_ONLY.match(text):
        sequence = operator["sequence"]
        return RangeMeaning("operator", operator["name"], int(sequence) if sequence else None)
    return RangeMeaning("annotation", text)


@dataclass
class RangeIndex:
    """Ranges of one kind on all threads, for looking up the innermost one around a moment."""

    numbers: list[int] = field(default_factory=list)  # four of each range, one after the other

    def add_range(self, thread: int, start_ns: int, end_ns: int, value: int) -> None:
        """Keep a range; its value is an index into names, or a step's number."""
        self.numbers += (thread, start_ns, end_ns, value)

    def find_around(self, threads: Integers, moments: Integers) -> Integers:
        """The value of the innermost range around each moment on its thread; -1 for none."""
        found = np.full(len(moments), -1, dtype=np.int64)
        ranges = np.array(self.numbers, dtype=np.int64).reshape(-1, 4)
        for thread in np.unique(ranges[:, 0]):
            asked = np.flatnonzero(threads == thread)
            if len(asked):
                found[asked] = _find_on_thread(ranges[ranges[:, 0] == thread], moments[asked])
        return found


def _find_on_thread(ranges: Integers, moments: Integers) -> Integers:
    """Push/pop ranges of a thread are nested: the innermost is the last one opened and not yet closed."""
    _, starts, ends, values = ranges[np.lexsort((-ranges[:, 2], ranges[:, 1]))].T
    parents = _find_parents(starts.tolist(), ends.tolist())
    at = np.searchsorted(starts, moments, side="right") - 1
    # walk outwards, all moments at once, until the range reaches over its moment
    outside = (at >= 0) & (ends[at] < moments)
    while outside.any():
        at[outside] = parents[at[outside]]
        outside = (at >= 0) & (ends[at] < moments)
    return np.where(at >= 0, values[at], -1)


def _find_parents(starts: list[int], ends: list[int]) -> Integers:
    """The range that encloses each range, by position; -1 for the outermost."""
    parents = np.full(len(starts), -1, dtype=np.int64)
    open_ranges: list[int] = []
    for position, start_ns in enumerate(starts):
        while open_ranges and ends[open_ranges[-1]] < start_ns:
            open_ranges.pop()
        if open_ranges:
            parents[position] = open_ranges[-1]
        open_ranges.append(position)
    return parents

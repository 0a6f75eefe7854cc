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

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Meaning:
    """What a range's text says: kind of host event, name, autograd sequence number, step number."""

    kind: str
    name: str
    sequence: int | None = None
    step: int | None = None


def meaning_of(text: str) -> Meaning:
    """Read the text of a range."""
    step = _STEP.match(text)
    if step:
        return Meaning("step", text, step=int(step["number"]))
    phase = _PHASE.match(text)
    if phase:
        return Meaning("phase", phase["name"])
    operator = _OPERATOR.match(text) or _SEQUENCE_ONLY.match(text)
    if operator:
        sequence = operator["sequence"]
        return Meaning("operator", operator["name"], int(sequence) if sequence else None)
    return Meaning("annotation", text)


@dataclass
class Ranges:
    """Ranges of one kind on all threads, for looking up the innermost one around a moment."""

    threads: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)  # an index into names, or a step's number

    def add(self, thread: int, start_ns: int, end_ns: int, value: int) -> None:
        """Keep a range."""
        self.threads.append(thread)
        self.starts.append(start_ns)
        self.ends.append(end_ns)
        self.values.append(value)

    def around(self, threads: Ints, moments: Ints) -> Ints:
        """The value of the innermost range around each moment on its thread; -1 for none.

        Push/pop ranges of a thread are nested, so the innermost is the last one opened and not yet closed.
        """
        found = np.full(len(moments), -1, dtype=np.int64)
        own_threads = np.array(self.threads, dtype=np.int64)
        for thread in np.unique(own_threads):
            ours = np.flatnonzero(own_threads == thread)
            asked = np.flatnonzero(threads == thread)
            if len(asked):
                found[asked] = self._on_one_thread(ours, moments[asked])
        return found

    def _on_one_thread(self, ours: Ints, moments: Ints) -> Ints:
        starts = np.array(self.starts, dtype=np.int64)[ours]
        ends = np.array(self.ends, dtype=np.int64)[ours]
        values = np.array(self.values, dtype=np.int64)[ours]
        order = np.lexsort((-ends, starts))
        starts, ends, values = starts[order], ends[order], values[order]
        parents = _parents(starts.tolist(), ends.tolist())
        at = np.searchsorted(starts, moments, side="right") - 1
        # walk outwards, all moments at once, until the range reaches over its moment
        outside = (at >= 0) & (ends[at] < moments)
        while outside.any():
            at[outside] = parents[at[outside]]
            outside = (at >= 0) & (ends[at] < moments)
        return np.where(at >= 0, values[at], -1)


def _parents(starts: list[int], ends: list[int]) -> Ints:
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

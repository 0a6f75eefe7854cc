"""Steps and phases of a profile: from its marks, from what the loop does, or as the recorder knows them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from detscope.traces import naming
from detscope.traces.columns import EventColumns, Flags, TraceEvents, join_columns
from detscope.traces.nesting import (
    NOBODY,
    NestedIntervals,
    Numbers,
    find_interval,
    merge_intervals,
    take_values,
)
from detscope.traces.places import ModuleIntervals

PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")
DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(6)
_PHASE_MARKS = (
    (DATA, naming.LOADER_MARK),
    (OPTIMIZER, naming.OPTIMIZER_MARK),
    (FORWARD, naming.FORWARD_MARK),
    (BACKWARD, naming.BACKWARD_MARK),
)
STEP_RANGES = "ranges that are named like steps"
_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class TraceSteps:
    """Steps in order of time; they do not overlap."""

    numbers: Numbers
    starts_ns: Numbers
    ends_ns: Numbers
    names: list[str]
    made_of: str  # what marked them; empty where there are none
    remark: str = ""  # on the first of them, where nothing marks its begin

    def __len__(self) -> int:
        return len(self.numbers)

    def find_index(self, times_ns: Numbers) -> Numbers:
        """The index of the step in which each time lies, or `NOBODY`."""
        return find_interval(self.starts_ns, self.ends_ns, times_ns)

    def find_number(self, times_ns: Numbers) -> Numbers:
        """The number of the step in which each time lies, or `NOBODY`."""
        return take_values(self.numbers, self.find_index(times_ns))


NO_STEPS = TraceSteps(_NOTHING, _NOTHING, _NOTHING, [], "")


@dataclass(frozen=True)
class TracePhases:
    """Stretches of time in one phase each; they do not overlap, and what lies between is `other`."""

    starts_ns: Numbers
    ends_ns: Numbers
    labels: Numbers

    def find_phase(self, times_ns: Numbers) -> Numbers:
        """The phase of each time; `OTHER` between the stretches."""
        return take_values(self.labels, find_interval(self.starts_ns, self.ends_ns, times_ns), OTHER)

    def sum_between(self, start_ns: int, end_ns: int) -> Numbers:
        """Time of each phase between two moments; they add up to the whole."""
        first = int(np.searchsorted(self.ends_ns, start_ns, side="right"))
        last = int(np.searchsorted(self.starts_ns, end_ns, side="left"))
        here = slice(first, max(first, last))
        clipped = np.minimum(self.ends_ns[here], end_ns) - np.maximum(self.starts_ns[here], start_ns)
        found = np.zeros(len(PHASES), np.int64)
        np.add.at(found, self.labels[here], np.maximum(clipped, 0))
        found[OTHER] += max(0, end_ns - start_ns) - found.sum()
        return found


def find_main_thread(trace: TraceEvents) -> int:
    """The thread that runs the loop: it has the steps, else the optimizer, else most launches or work."""
    annotations = trace.annotations
    marks = (naming.STEP_MARK, naming.STEP_RANGE, naming.OPTIMIZER_MARK, naming.LOADER_MARK)
    marked = (annotations.thread[trace.check_names(annotations, mark.search)] for mark in marks)
    for threads in (*marked, trace.runtime.thread, trace.operators.thread, annotations.thread):
        if len(threads):
            kinds, counts = np.unique(threads, return_counts=True)
            return int(kinds[np.argmax(counts)])
    return 0


def find_steps(trace: TraceEvents, thread: int) -> TraceSteps:
    """Steps by profiler marks, else by the optimizer, the loader, or what encloses the stages."""
    own = trace.own.get("own step")
    if own is not None and len(own):
        return _read_marks(trace, own, naming.OWN_STEP, "steps of a detscope trace")
    for pattern, made_of in ((naming.STEP_MARK, "ProfilerStep marks"), (naming.STEP_RANGE, STEP_RANGES)):
        marks = _take_named(trace, trace.annotations, pattern)
        if len(marks):
            return _read_marks(trace, marks, pattern, made_of)
    annotations = _take_thread(trace.annotations, thread)
    optimizer = _take_named(trace, annotations, naming.OPTIMIZER_STEP)
    loader = _take_named(trace, annotations, naming.LOADER_MARK)
    hosts = [_take_thread(part, thread) for part in (annotations, trace.operators, trace.runtime)]
    if len(optimizer) and not len(optimizer) > len(loader) > 0:
        begun = min(int(part.start_ns.min(initial=optimizer.end_ns[0])) for part in hosts[:2])
        return _end_with_optimizer(np.sort(optimizer.end_ns), np.sort(loader.start_ns), begun)
    if len(loader) > 1:
        starts = np.sort(loader.start_ns)
        last = max(int(part.end_ns.max(initial=starts[-1] + 1)) for part in hosts)
        return _number_steps(starts, np.concatenate([starts[1:], [last]]), "the loader's batches")
    # inference: the outermost annotation around a detector's stages is one pass
    stages = trace.check_names(annotations, naming.stage_name)
    if stages.any():
        nest = trace.nest_events(annotations)
        parents = nest.find_parents()
        outer = int(np.flatnonzero(stages)[np.argmin(annotations.start_ns[stages])])
        while parents[outer] != NOBODY:
            outer = int(parents[outer])
        if not stages[outer]:
            same = annotations.take_rows((annotations.name == annotations.name[outer]) & (nest.depth == 0))
            same = same.take_rows(np.argsort(same.start_ns))
            name = trace.names[int(annotations.name[outer])]
            return _number_steps(same.start_ns, same.end_ns, f"annotation {name!r}")
    return NO_STEPS


def _end_with_optimizer(ends: Numbers, asked: Numbers, begun: int) -> TraceSteps:
    """Steps that end with the optimizer's; the first begins with its batches, for before them is start-up."""
    made_of = "ends of the optimizer's step"
    early = asked[asked < ends[0]]
    if len(early):
        later = np.diff(np.searchsorted(asked, ends))  # batches of the other steps
        batches = max(1, int(np.median(later))) if len(later) else len(early)
        first = int(early[-min(batches, len(early))])
        remark = "the first begins where its batch was asked for" if begun < first else ""
        return _number_steps(np.concatenate([[first], ends[:-1]]), ends, made_of, remark)
    if len(ends) > 1:
        remark = "all before the first such end is start-up and in no step"
        return _number_steps(ends[:-1], ends[1:], made_of, remark)
    return _number_steps(np.array([begun]), ends, made_of)


def _take_thread(columns: EventColumns, thread: int) -> EventColumns:
    return columns.drop_extra().take_rows(columns.thread == thread)


def _take_named(trace: TraceEvents, columns: EventColumns, pattern: re.Pattern[str]) -> EventColumns:
    return columns.take_rows(trace.check_names(columns, pattern.search))


def _read_marks(
    trace: TraceEvents, marks: EventColumns, pattern: re.Pattern[str], made_of: str
) -> TraceSteps:
    marks = marks.take_rows(np.argsort(marks.start_ns, kind="stable"))
    starts, ends = marks.start_ns, marks.end_ns
    names = [trace.names[code] for code in marks.name.tolist()]
    # two marks may meet or overlap by a rounding error; a moment belongs to one step
    ends[:-1] = np.minimum(ends[:-1], starts[1:])
    found = [pattern.search(name) for name in names]
    numbers = [int(match.group(1)[:18]) if match else index for index, match in enumerate(found)]
    return TraceSteps(np.array(numbers, np.int64), starts, ends, names, made_of)


def _number_steps(starts: Numbers, ends: Numbers, made_of: str, remark: str = "") -> TraceSteps:
    names = [f"step {number}" for number in range(len(starts))]
    return TraceSteps(np.arange(len(starts)), starts, ends, names, made_of, remark)


def find_phases(
    trace: TraceEvents,
    thread: int,
    nest: NestedIntervals,
    backward: Flags,
    transfers: Flags,
    places: tuple[ModuleIntervals, ModuleIntervals],
) -> TracePhases:
    """Phases from marks, autograd and what runs on the loop's thread.

    Time between two events of one phase belongs to that phase; time between two phases to none.
    """
    if "own phase" in trace.own:
        own = trace.own["own phase"]
        own = own.take_rows(np.argsort(own.start_ns, kind="stable"))
        labels = trace.map_names(own, lambda name: PHASES.index(name) if name in PHASES else OTHER)
        return TracePhases(own.start_ns, own.end_ns, np.array(labels, np.int64))
    on_thread = _take_thread(trace.annotations, thread)
    marks = [(label, _take_named(trace, on_thread, pattern)) for label, pattern in _PHASE_MARKS]
    operators = trace.operators.drop_extra()
    top = nest.depth == 0
    forward = top & (operators.thread == thread) & ~backward
    parts = [
        (BACKWARD, operators.take_rows(top & backward)),
        (TRANSFER, operators.take_rows(forward & transfers)),
        (FORWARD, operators.take_rows(forward & ~transfers)),
        *((FORWARD, _take_thread(place.intervals, thread)) for place in places),
    ]
    covered = join_columns(*(found for _, found in marks))
    starts, ends = merge_intervals(covered.start_ns, covered.end_ns)
    for label, found in parts:  # events that begin inside a mark are left out: it says more than they do
        free = find_interval(starts, ends, found.start_ns) == NOBODY
        marks.append((label, found.take_rows(free)))
    whole = join_columns(*(found for _, found in marks))
    if not len(whole):
        return TracePhases(_NOTHING, _NOTHING, _NOTHING)
    codes = np.concatenate([np.full(len(found), label, np.int64) for label, found in marks])
    order = np.lexsort((-whole.wall_ns, whole.start_ns))
    starts, ends, codes = whole.start_ns[order], whole.end_ns[order], codes[order]
    first = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    stretch_ends = np.maximum.reduceat(ends, first)
    stretch_starts = starts[first]
    # the next phase ends the one before it; what is left over afterwards is not taken up again
    stretch_ends[:-1] = np.minimum(stretch_ends[:-1], stretch_starts[1:])
    return TracePhases(stretch_starts, stretch_ends, codes[first])

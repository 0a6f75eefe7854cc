"""The events of a trace, sorted out: device, runtime calls, operators, annotations, modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from detscope.ingest.kineto import naming
from detscope.ingest.kineto.columns import EventCollector, EventColumns, Flags, join_columns
from detscope.ingest.kineto.nesting import NestedIntervals, ThreadAxis, make_axis

_OWN_ROLES = ("own step", "own phase", "own stage", "own module", "own loader")


@dataclass(frozen=True)
class TraceEvents:
    """One file's events by what they are. Names and threads are numbers into the lists."""

    names: list[str]
    threads: list[tuple[Any, Any]]
    shapes: list[bytes]
    stacks: list[str]
    device: EventColumns  # extra column "kind": index into naming.DEVICE_ROLES
    device_annotations: EventColumns
    runtime: EventColumns
    operators: EventColumns
    annotations: EventColumns
    python: EventColumns
    memory: EventColumns
    own: dict[str, EventColumns]
    axis: ThreadAxis

    def check_names(self, columns: EventColumns, test: Callable[[str], object]) -> Flags:
        """For each event: whether the test holds for its name; each name is tested once."""
        return check_names(self.names, columns, test)

    def map_names(self, columns: EventColumns, function: Callable[[str], Any]) -> list[Any]:
        """The function's value for the name of each event; each name is asked once."""
        values = {code: function(self.names[code]) for code in np.unique(columns.name).tolist()}
        return [values[code] for code in columns.name.tolist()]

    def nest_events(self, columns: EventColumns) -> NestedIntervals:
        """The events as intervals that nest on their threads."""
        return NestedIntervals(self.axis, columns.thread, columns.start_ns, columns.wall_ns)


def check_names(names: list[str], columns: EventColumns, test: Callable[[str], object]) -> Flags:
    """For each event: whether the test holds for its name."""
    used = np.unique(columns.name)
    answers = np.zeros(len(names), bool)
    answers[used] = [bool(test(names[code])) for code in used.tolist()]
    return answers[columns.name]


def sort_events(collector: EventCollector) -> TraceEvents:
    """All events of a file by what they are."""
    columns = collector.finish_columns()
    names = [naming.scrub_homes(name) for name in collector.names]
    own = {role: columns.pop(role) for role in _OWN_ROLES if role in columns}

    def take_role(role: str) -> EventColumns:
        return columns.pop(role, None) or join_columns()

    operators, marks = _split_marks(names, take_role("operator"))
    bare, more_marks = _split_bare(names, take_role("bare"))
    operators = join_columns(operators, bare)
    if own:  # detscope's own trace has a track per kind; all of it but the workers ran on one thread
        for part in (*(part for role, part in own.items() if role != "own loader"), operators, marks):
            part.thread[:] = 0
    annotations = join_columns(take_role("annotation"), marks, more_marks)
    runtime, python = take_role("runtime"), take_role("python")
    parts = []
    for index, role in enumerate(naming.DEVICE_ROLES):
        part = take_role(role)
        part.extra["kind"] = np.full(len(part), index, np.int8)
        if role != "kernel":
            nothing = np.full(len(part), np.nan, np.float32)
            part.extra |= {"blocks_per_sm": nothing, "occupancy": nothing}
        parts.append(part)
    device = join_columns(*parts)
    hosts = (runtime, operators, annotations, python, *own.values())
    timed = join_columns(*[part.drop_extra() for part in hosts])
    return TraceEvents(
        names=names,
        threads=list(collector.threads),
        shapes=list(collector.shapes),
        stacks=list(collector.stacks),
        device=device.take_rows(np.argsort(device.start_ns, kind="stable")),
        device_annotations=take_role("device annotation"),
        runtime=runtime,
        operators=operators,
        annotations=annotations,
        python=python,
        memory=take_role("memory"),
        own=own,
        axis=make_axis(timed.start_ns, timed.end_ns, len(collector.threads)),
    )


def _split_marks(names: list[str], operators: EventColumns) -> tuple[EventColumns, EventColumns]:
    """Old traces have the marks of steps, loader and optimizer among the operators."""
    patterns = (naming.STEP_MARK, naming.LOADER_MARK, naming.OPTIMIZER_MARK)
    marks = check_names(names, operators, lambda name: any(mark.search(name) for mark in patterns))
    if not marks.any():
        return operators, join_columns()
    return operators.take_rows(~marks), operators.take_rows(marks)


def _split_bare(names: list[str], bare: EventColumns) -> tuple[EventColumns, EventColumns]:
    """Traces without categories: what follows right behind an entering mark is an annotation."""
    if not len(bare):
        return bare, join_columns()
    bare = bare.take_rows(np.lexsort((bare.start_ns, bare.thread)))
    enters = check_names(names, bare, lambda name: name == naming.RECORD_ENTER)
    annotated = np.concatenate([[False], enters[:-1] & (bare.thread[1:] == bare.thread[:-1])])
    marks = check_names(names, bare, naming.RECORD_MARKS.search)
    annotated &= ~marks
    operators, known = _split_marks(names, bare.take_rows(~marks & ~annotated))
    return operators, join_columns(bare.take_rows(annotated), known)

"""The events of a trace, sorted out: device, runtime calls, operators, annotations, modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detscope.ingest.kineto.columns import Collector, Columns
from detscope.ingest.kineto.names import (
    BACKWARD_OPERATOR,
    DEVICE_ROLES,
    LOADER_MARK,
    OPTIMIZER_MARK,
    RECORD_ENTER,
    RECORD_MARKS,
    STEP_MARK,
    scrubbed,
)
from detscope.ingest.kineto.nesting import Axis, make_axis

Flags = NDArray[np.bool_]
_OWN_ROLES = ("own step", "own phase", "own stage", "own module", "own loader")


@dataclass(frozen=True)
class Scene:
    """One file's events by what they are. Names and threads are numbers into the lists."""

    names: list[str]
    threads: list[tuple[Any, Any]]
    device: Columns  # extra column "kind": index into DEVICE_ROLES
    device_annotations: Columns
    runtime: Columns
    operators: Columns
    annotations: Columns
    python: Columns
    memory: Columns
    own: dict[str, Columns]
    axis: Axis
    shapes: list[bytes] = field(default_factory=list)
    stacks: list[str] = field(default_factory=list)
    hierarchies: list[str] = field(default_factory=list)

    def flags(self, columns: Columns, test: Callable[[str], object]) -> Flags:
        """For each event: whether the test holds for its name; each name is tested once."""
        return flags_by_name(self.names, columns, test)

    def matching(self, columns: Columns, pattern: re.Pattern[str]) -> Flags:
        """For each event: whether its name has the pattern."""
        return self.flags(columns, pattern.search)

    @property
    def backward(self) -> Flags:
        """Operators of the autograd engine."""
        return self.matching(self.operators, BACKWARD_OPERATOR)


def flags_by_name(names: list[str], columns: Columns, test: Callable[[str], object]) -> Flags:
    """For each event: whether the test holds for its name."""
    used = np.unique(columns.name)
    answers = np.zeros(len(names), bool)
    answers[used] = [bool(test(names[code])) for code in used.tolist()]
    return answers[columns.name]


def no_columns(extras: Iterable[str] = ()) -> Columns:
    """A role without events."""
    empty = np.empty(0, np.int64)
    narrow = np.empty(0, np.int32)
    return Columns(empty, empty, narrow, narrow, dict.fromkeys(extras, empty))


def joined(*parts: Columns) -> Columns:
    """Events of several roles; a column that one of them lacks is -1 there."""
    parts = tuple(part for part in parts if len(part))
    if len(parts) <= 1:
        return parts[0] if parts else no_columns()
    extras = {name for part in parts for name in part.extra}
    return Columns(
        np.concatenate([part.start_ns for part in parts]),
        np.concatenate([part.wall_ns for part in parts]),
        np.concatenate([part.name for part in parts]),
        np.concatenate([part.thread for part in parts]),
        {name: np.concatenate([part.value(name) for part in parts]) for name in extras},
    )


def sort_out(collector: Collector) -> Scene:
    """All events of a file by what they are."""
    columns = collector.finish()
    names = [scrubbed(name) for name in collector.names.values_in_order()]
    own = {role: columns.pop(role) for role in _OWN_ROLES if role in columns}
    operators, marks = _part_operators(names, columns.pop("operator", no_columns()))
    bare, more_marks = _part_bare(names, columns.pop("bare", no_columns()))
    operators = joined(operators, bare)
    if own:  # detscope's own trace has a track per kind; all of it but the workers ran on one thread
        for part in (*(part for role, part in own.items() if role != "own loader"), operators, marks):
            part.thread[:] = 0
    scene_parts = {
        "device": _device(columns),
        "device_annotations": columns.pop("device annotation", no_columns()),
        "runtime": columns.pop("runtime", no_columns()),
        "operators": operators,
        "annotations": joined(columns.pop("annotation", no_columns()), marks, more_marks),
        "python": columns.pop("python", no_columns()),
        "memory": columns.pop("memory", no_columns()),
    }
    hosts = [scene_parts[role] for role in ("runtime", "operators", "annotations", "python")]
    timed = joined(*[Columns(c.start_ns, c.wall_ns, c.name, c.thread) for c in (*hosts, *own.values())])
    return Scene(
        names=names,
        threads=collector.threads.values_in_order(),
        own=own,
        axis=make_axis(timed.start_ns, timed.end_ns, len(collector.threads)),
        shapes=collector.shapes.values_in_order(),
        stacks=collector.stacks.values_in_order(),
        hierarchies=collector.hierarchies.values_in_order(),
        **scene_parts,
    )


def _device(columns: dict[str, Columns]) -> Columns:
    parts = []
    for index, role in enumerate(DEVICE_ROLES):
        part = columns.pop(role, None)
        if part is not None:
            part.extra["kind"] = np.full(len(part), index, np.int8)
            if role != "kernel":
                nothing = np.full(len(part), np.nan, np.float32)
                part.extra |= {"blocks_per_sm": nothing, "occupancy": nothing}
            parts.append(part)
    whole = joined(*parts)
    return whole.take(np.argsort(whole.start_ns, kind="stable"))


def _part_operators(names: list[str], operators: Columns) -> tuple[Columns, Columns]:
    """Old traces have the marks of steps, loader and optimizer among the operators."""

    def is_mark(name: str) -> bool:
        return any(mark.search(name) for mark in (STEP_MARK, LOADER_MARK, OPTIMIZER_MARK))

    marks = flags_by_name(names, operators, is_mark)
    return (operators.take(~marks), operators.take(marks)) if marks.any() else (operators, no_columns())


def _part_bare(names: list[str], bare: Columns) -> tuple[Columns, Columns]:
    """Traces without categories: what follows right behind an entering mark is an annotation."""
    if not len(bare):
        return bare, no_columns()
    bare = bare.take(np.lexsort((bare.start_ns, bare.thread)))
    enters = flags_by_name(names, bare, lambda name: name == RECORD_ENTER)
    annotated = np.concatenate([[False], enters[:-1] & (bare.thread[1:] == bare.thread[:-1])])
    marks = flags_by_name(names, bare, RECORD_MARKS.search)
    annotated &= ~marks
    operators, annotations = bare.take(~marks & ~annotated), bare.take(annotated)
    more, known = _part_operators(names, operators)
    return more, joined(annotations, known)

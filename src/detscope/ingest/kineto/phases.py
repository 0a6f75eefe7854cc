"""Phases of a step: which of them the loop was in at any moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detscope.ingest.kineto.columns import Columns
from detscope.ingest.kineto.modules import Places
from detscope.ingest.kineto.names import BACKWARD_MARK, FORWARD_MARK, LOADER_MARK, OPTIMIZER_MARK
from detscope.ingest.kineto.nesting import Nest, Numbers, outermost_merged
from detscope.ingest.kineto.scene import Scene, joined, no_columns
from detscope.ingest.kineto.steps import Steps

PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")
DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(6)
_MARKS = (
    (DATA, LOADER_MARK),
    (OPTIMIZER, OPTIMIZER_MARK),
    (FORWARD, FORWARD_MARK),
    (BACKWARD, BACKWARD_MARK),
)


@dataclass(frozen=True)
class Phases:
    """Stretches of time in one phase each; they do not overlap, and what lies between is `other`."""

    starts_ns: Numbers
    ends_ns: Numbers
    labels: Numbers

    def at(self, times_ns: Numbers) -> Numbers:
        """The phase of each time; `OTHER` between the stretches."""
        if not len(self.starts_ns):
            return np.full(len(times_ns), OTHER, np.int64)
        index = np.searchsorted(self.starts_ns, times_ns, side="right") - 1
        last = np.maximum(index, 0)
        inside = (index >= 0) & (times_ns < self.ends_ns[last])
        return np.where(inside, self.labels[last], OTHER)

    def within(self, start_ns: int, end_ns: int) -> NDArray[np.int64]:
        """Time of each phase between two moments; they add up to the whole."""
        first = int(np.searchsorted(self.ends_ns, start_ns, side="right"))
        last = int(np.searchsorted(self.starts_ns, end_ns, side="left"))
        here = slice(first, max(first, last))
        clipped = np.minimum(self.ends_ns[here], end_ns) - np.maximum(self.starts_ns[here], start_ns)
        found = np.zeros(len(PHASES), np.int64)
        np.add.at(found, self.labels[here], np.maximum(clipped, 0))
        found[OTHER] += max(0, end_ns - start_ns) - found.sum()
        return found


def find_phases(
    scene: Scene,
    thread: int,
    nest: Nest,
    backward: NDArray[np.bool_],
    transfers: NDArray[np.bool_],
    modules: Places,
    stages: Places,
) -> Phases:
    """Phases from marks, autograd and what runs on the loop's thread.

    Time between two events of one phase belongs to that phase; time between two phases to none.
    """
    if "own phase" in scene.own:
        return _own(scene, scene.own["own phase"])
    on_thread = scene.annotations.take(scene.annotations.thread == thread)
    marks = [(label, on_thread.take(scene.matching(on_thread, pattern))) for label, pattern in _MARKS]
    operators = scene.operators
    top = nest.depth == 0
    forward = top & (operators.thread == thread) & ~backward
    parts = [
        (BACKWARD, operators.take(top & backward)),
        (TRANSFER, operators.take(forward & transfers)),
        (FORWARD, operators.take(forward & ~transfers)),
        *((FORWARD, _on(places.intervals, thread)) for places in (modules, stages)),
    ]
    covered = joined(*(_bare(found) for _, found in marks))
    free = [(label, _outside(found, covered)) for label, found in parts]
    return _stretches([(label, found) for label, found in (*marks, *free) if len(found)])


def _on(columns: Columns, thread: int) -> Columns:
    return columns.take(columns.thread == thread)


def _bare(columns: Columns) -> Columns:
    return Columns(columns.start_ns, columns.wall_ns, columns.name, columns.thread)


def _outside(columns: Columns, covered: Columns) -> Columns:
    """Events that do not begin inside a mark, which says more than they do."""
    if not len(covered) or not len(columns):
        return columns
    starts, ends = outermost_merged(covered.start_ns, covered.end_ns)
    index = np.searchsorted(starts, columns.start_ns, side="right") - 1
    inside = (index >= 0) & (columns.start_ns < ends[np.maximum(index, 0)])
    return columns.take(~inside)


def _stretches(parts: list[tuple[int, Columns]]) -> Phases:
    whole = joined(*(_bare(found) for _, found in parts)) if parts else no_columns()
    if not len(whole):
        nothing = np.empty(0, np.int64)
        return Phases(nothing, nothing, nothing)
    labels = np.concatenate([np.full(len(found), label, np.int64) for label, found in parts])
    order = np.lexsort((-whole.wall_ns, whole.start_ns))
    starts, ends, labels = whole.start_ns[order], whole.end_ns[order], labels[order]
    first = np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]]))
    stretch_ends = np.maximum.reduceat(ends, first)
    stretch_starts = starts[first]
    # the next phase ends the one before it; what is left over afterwards is not taken up again
    stretch_ends[:-1] = np.minimum(stretch_ends[:-1], stretch_starts[1:])
    return Phases(stretch_starts, stretch_ends, labels[first])


def _own(scene: Scene, found: Columns) -> Phases:
    order = np.argsort(found.start_ns, kind="stable")
    labels = [
        PHASES.index(name) if (name := scene.names[code]) in PHASES else OTHER
        for code in found.name[order].tolist()
    ]
    return Phases(found.start_ns[order], found.end_ns[order], np.array(labels, np.int64))


def phase_of_step_rows(steps: Steps, phases: Phases) -> dict[str, list[object]]:
    """Rows of table `steps`: each step whole, and its phases, which add up to it."""
    rows: dict[str, list[object]] = {name: [] for name in ("step", "mode", "phase", "start_ns", "wall_ns")}
    for number, start, end in zip(
        steps.numbers.tolist(), steps.starts_ns.tolist(), steps.ends_ns.tolist(), strict=True
    ):
        walls = [end - start, *phases.within(start, end).tolist()]
        for phase, wall in zip(("step", *PHASES), walls, strict=True):
            for name, value in zip(rows, (number, "recorded", phase, start, wall), strict=True):
                rows[name].append(value)
    return rows

"""Operators, kernels and copies of a window of steps to modules, phases and steps, as rows of tables.

The recorder knows its own modules, phases and steps; all else is found as in a file (`traces/`). Forward:
module spans stand in the same event stream and thread, so nesting decides. Backward: every autograd node has
the sequence number of the forward operation that made it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
import polars as pl

from detscope.record.operators.events import CLOCK_PREFIX, CLOCK_ROLE, SPAN_ROLE
from detscope.record.steps.events import ENTER, EXIT, SPAN_PREFIX, decode_events
from detscope.record.steps.nodes import NodeTable
from detscope.runs.writer import polars_schema
from detscope.traces.attribution import RecordedParts, TraceAttribution, attribute_events
from detscope.traces.columns import EventColumns, TraceEvents, join_columns
from detscope.traces.nesting import NOBODY as NOBODY
from detscope.traces.places import ModuleIntervals, make_intervals, walk_down
from detscope.traces.steps import PHASES, TracePhases, TraceSteps
from detscope.traces.tables import (
    complete_columns,
    make_device_frame,
    make_host_frames,
    make_operator_frame,
    make_texts,
)

AUTOGRAD = "autograd::engine::evaluate_function: "
OPTIMIZER = "Optimizer."
LOADER = "DataLoader.__next__"
OPERATOR, SPAN, NODE, ACCUMULATE, OPTIMIZER_STEP = range(5)


@dataclass(frozen=True)
class Ownership:
    """Which call created which autograd nodes: change points over sequence numbers."""

    sequences: tuple[int, ...]
    owners: tuple[tuple[int, str], ...]  # node number (NOBODY outside of the model) and stage

    def owner_at(self, sequence: int) -> tuple[int, str]:
        """Owner and stage of the autograd node with this number."""
        index = bisect_right(self.sequences, sequence) - 1
        return (NOBODY, "") if index < 0 else self.owners[index]


def find_owners(events: Sequence[int], nodes: NodeTable) -> Ownership:
    """Change points from the events of one or more steps, in order.

    Every thread counts for itself. Numbers that fall back while backward runs are those of the engine's
    thread, which runs a module again; they say nothing about the nodes of the thread that ran forward.
    """
    stack: list[tuple[int, str]] = []
    points: dict[int, tuple[int, str]] = {}
    highest, in_backward = -1, 0
    for number, what, _, sequence in decode_events(events):
        node = nodes[number]
        if node.kind == "phase" and node.path == "backward":
            in_backward += (what == ENTER) - (what == EXIT)
        if sequence < 0 or what not in (ENTER, EXIT) or (in_backward > 0 and sequence < highest):
            continue
        highest = sequence
        if what == ENTER:
            stage = node.stage_within(stack[-1][1] if stack else None) or ""
            stack.append((number, stage))
        else:
            while stack and stack.pop()[0] != number:
                continue
        points[sequence] = stack[-1] if stack else (NOBODY, "")
    ordered = sorted(points.items())
    return Ownership(tuple(sequence for sequence, _ in ordered), tuple(owner for _, owner in ordered))


def classify_name(name: str) -> int:
    """What an event of the profiler is, by its name."""
    if name.startswith(AUTOGRAD):
        return ACCUMULATE if name.endswith("AccumulateGrad") else NODE
    if name.startswith(SPAN_PREFIX):
        return SPAN
    return OPTIMIZER_STEP if name.startswith(OPTIMIZER) else OPERATOR


@dataclass(frozen=True)
class StepSpan:
    """One step of the operator window, in the recorder's clock."""

    index: int
    start_ns: int
    waited_ns: int  # when its batch had arrived
    end_ns: int


@dataclass(frozen=True)
class Attribution:
    """The result for a window of steps."""

    operators: pl.DataFrame  # the run's `ops` table
    host: pl.DataFrame  # name, start_ns, wall_ns of every operator, in the recorder's clock
    device: pl.DataFrame  # the same of every kernel and copy
    backward_ns: int
    backward_in_modules_ns: int
    kernels_unlinked: int
    found: TraceAttribution


def attribute_operators(
    raw: TraceEvents, nodes: NodeTable, events: Sequence[int], steps: Sequence[StepSpan] = ()
) -> Attribution:
    """Give every operator of the steps (without any: of the window) a module, stage, phase and direction."""
    spans, offset_ns = raw.own.get(SPAN_ROLE) or join_columns(), _find_clock_offset(raw)
    first = spans.thread[np.argsort(spans.start_ns, kind="stable")[:1]].tolist()
    numbers, starts, waited, ends = np.array([astuple(step) for step in steps], np.int64).reshape(-1, 4).T
    starts, waited, ends = starts + offset_ns, waited + offset_ns, ends + offset_ns
    loader = np.full(len(steps), len(raw.names), np.int32)
    waits = EventColumns(starts, waited - starts, loader, np.full(len(steps), NOBODY, np.int32))
    own = {**raw.own, "own loader": waits.take_rows(waited > starts)}
    raw = replace(raw, names=[*raw.names, LOADER], own=own)
    parts = RecordedParts(
        *_find_places(raw, spans, nodes),
        _find_phases(events, nodes, offset_ns),
        TraceSteps(numbers, starts, ends, [f"step {step.index}" for step in steps], "recorded steps"),
        next(iter(first), None),
    )
    found = attribute_events(raw, -offset_ns, parts)
    work = raw.is_work
    return Attribution(
        complete_columns("ops", make_operator_frame(found), 0),
        _list_intervals(raw, raw.operators, offset_ns),
        _list_intervals(raw, raw.device.take_rows(work), offset_ns),
        *found.backward_times,
        int((work & (found.launch_operator < 0)).sum()),
        found,
    )


def make_device_tables(result: Attribution, rank: int = 0) -> tuple[pl.DataFrame, pl.DataFrame] | None:
    """The tables `device_events` and `host_events` of a window; None where no device was recorded."""
    found = result.found
    if not len(found.trace.device) and not len(found.trace.runtime):
        return None
    host = [pl.DataFrame(schema=polars_schema("host_events"))]
    host += [complete_columns("host_events", frame, rank) for frame in make_host_frames(found)]
    return complete_columns("device_events", make_device_frame(found), rank), pl.concat(host)


def _find_places(
    raw: TraceEvents, spans: EventColumns, nodes: NodeTable
) -> tuple[ModuleIntervals, ModuleIntervals]:
    """Modules and stages, by the spans that the recorder wrote into the profile."""
    known = [nodes[number] for number in raw.map_names(spans, lambda name: int(name[len(SPAN_PREFIX) :]))]
    types = {node.path: node.type_name for node in known}
    modules = make_intervals(raw, spans, [node.path for node in known], types, "recorded modules")
    stages: dict[int, str | None] = {}
    for index, parent in walk_down(modules.nest):
        stages[index] = known[index].stage_within(stages.get(parent))
    staged = [index for index, node in enumerate(known) if node.stage is not None]
    paths = [stages[index] or "" for index in staged]
    return modules, make_intervals(raw, spans.take_rows(staged), paths, {}, "recorded stages")


def _find_phases(events: Sequence[int], nodes: NodeTable, offset_ns: int) -> TracePhases | None:
    """Stretches of one phase each, in the profiler's clock; None where none was marked."""
    rows: list[tuple[int, int, int]] = []
    under_way: list[int] = []
    since_ns = 0
    for number, what, time_ns, _ in decode_events(events):
        if nodes[number].kind != "phase" or what not in (ENTER, EXIT):
            continue
        phase = PHASES.index(nodes[number].path)
        if under_way and time_ns > since_ns:
            rows.append((since_ns + offset_ns, time_ns + offset_ns, under_way[-1]))
        if what == ENTER:
            under_way.append(phase)
        elif phase in under_way:
            del under_way[len(under_way) - 1 - under_way[::-1].index(phase) :]
        since_ns = time_ns
    return TracePhases(*np.array(rows, np.int64).T) if rows else None


def _list_intervals(raw: TraceEvents, columns: EventColumns, offset_ns: int) -> pl.DataFrame:
    names = make_texts(raw.names, columns.name)
    return pl.DataFrame({"name": names, "start_ns": columns.start_ns - offset_ns, "wall_ns": columns.wall_ns})


def _find_clock_offset(raw: TraceEvents) -> int:
    """The profiler's clock less ours, by moments that both have seen; the one held up least tells."""
    moments = raw.own.get(CLOCK_ROLE)
    if moments is None:
        return 0
    ours = raw.map_names(moments, lambda name: int(name[len(CLOCK_PREFIX) :]))
    return int((moments.start_ns - np.array(ours, np.int64)).min())

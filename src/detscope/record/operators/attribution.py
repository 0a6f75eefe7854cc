"""Operators to modules, in both directions. Pure: events in, tables out.

Forward: module spans stand in the same event stream and thread, so nesting decides. Backward: every
autograd node carries the sequence number of the forward operation that made it, and each module knows
the range of numbers it created. `AccumulateGrad` has none: the engine runs it right after the node
that produced the gradient, and it belongs to the same module.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import polars as pl

from detscope.record.operators.profiler import AUTOGRAD, OperatorEvents
from detscope.record.steps.events import ENTER, EXIT, SPAN_PREFIX, decode_events
from detscope.record.steps.nodes import NodeTable

OPTIMIZER = "Optimizer."
NOBODY = -1
OPERATOR, SPAN, NODE, ACCUMULATE, OPTIMIZER_STEP = range(5)
Context = tuple[int, str, str, str]  # owner, stage, phase, direction


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
    """Change points from the events of one or more steps, in order."""
    stack: list[tuple[int, str]] = []
    points: dict[int, tuple[int, str]] = {}
    for number, what, _, sequence in decode_events(events):
        if sequence < 0 or what not in (ENTER, EXIT):
            continue
        if what == ENTER:
            stage = nodes[number].stage_within(stack[-1][1] if stack else None) or ""
            stack.append((number, stage))
        else:
            while stack and stack.pop()[0] != number:
                continue
        points[sequence] = stack[-1] if stack else (NOBODY, "")
    ordered = sorted(points.items())
    return Ownership(tuple(sequence for sequence, _ in ordered), tuple(owner for _, owner in ordered))


@dataclass
class Attribution:
    """The result for a window of steps."""

    operators: pl.DataFrame  # the run's `ops` table
    host: pl.DataFrame  # name, start_ns, wall_ns of every operator, in the recorder's clock
    device: pl.DataFrame  # the same of every kernel and copy
    backward_ns: int
    backward_in_modules_ns: int
    kernels_unlinked: int
    offset_ns: int = 0  # the profiler's clock less the recorder's
    context_of: list[int] = field(default_factory=list)  # by event: index into contexts, -1: not an operator
    contexts: list[Context] = field(default_factory=list)


def attribute_operators(raw: OperatorEvents, nodes: NodeTable, events: Sequence[int]) -> Attribution:
    """Give every operator of the window a module, a stage, a phase and a direction."""
    starts, durations = np.asarray(raw.starts_ns), np.asarray(raw.durations_ns)
    on_device = np.zeros(len(raw), bool) if raw.on_device is None else np.asarray(raw.on_device)
    waits = np.zeros(len(raw), bool) if raw.device is None else np.asarray(raw.device.kinds) == "sync"
    order = np.lexsort((-durations, starts, np.asarray(raw.threads)))
    order = order[~(on_device | waits)[order]]
    sweep = _EventSweep(raw, nodes, find_owners(events, nodes))
    sweep.run_events(order.tolist())
    offset_ns = _find_clock_offset(raw, sweep.span_indices, events)
    table = _make_operator_table(raw, sweep, nodes, on_device)
    return Attribution(
        table.drop("index"),
        _make_intervals(raw, table["index"].explode().to_numpy(), starts - offset_ns, durations),
        _make_intervals(raw, np.flatnonzero(on_device), starts - offset_ns, durations),
        sweep.backward_ns,
        sweep.backward_in_modules_ns,
        sweep.kernels_unlinked,
        offset_ns,
        sweep.context_of,
        sweep.contexts,
    )


class _EventSweep:
    """One pass over the host events of all threads, outer before inner."""

    def __init__(self, raw: OperatorEvents, nodes: NodeTable, owners: Ownership) -> None:
        self.raw = raw
        self.nodes = nodes
        self.owners = owners
        self.contexts: list[Context] = [(NOBODY, "", "other", "forward")]
        self._numbers: dict[Context, int] = {self.contexts[0]: 0}
        self.context_of = [-1] * len(raw)  # -1: not an operator
        self.below_ns = [0] * len(raw)  # time of operators directly below
        self.span_indices: list[int] = []
        self.backward_ns = self.backward_in_modules_ns = self.kernels_unlinked = 0

    def run_events(self, order: list[int]) -> None:
        """Walk over the events; this loop sees every operator and is kept lean."""
        raw, context_of, below_ns = self.raw, self.context_of, self.below_ns
        names, starts, durations, threads = raw.names, raw.starts_ns, raw.durations_ns, raw.threads
        kinds = {name: classify_name(name) for name in set(names)}
        ends: list[int] = []
        contexts: list[int] = []
        operators: list[int] = []  # the innermost operator; -1 where there is none
        thread, last_owner = None, (NOBODY, "")
        for index in order:
            start = starts[index]
            if threads[index] != thread:
                thread, last_owner = threads[index], (NOBODY, "")
                ends, contexts, operators = [], [], []
            while ends and ends[-1] <= start:
                ends.pop()
                contexts.pop()
                operators.pop()
            context = contexts[-1] if ends else 0
            above = operators[-1] if ends else -1
            kind = kinds[names[index]]
            duration = durations[index]
            if kind != OPERATOR:
                context, last_owner = self._enter_special(index, kind, context, last_owner)
            ends.append(start + duration)
            contexts.append(context)
            if kind == SPAN:
                operators.append(above)
                continue
            operators.append(index)
            context_of[index] = context
            if above >= 0:
                below_ns[above] += duration

    def _enter_special(
        self, index: int, kind: int, context: int, last_owner: tuple[int, str]
    ) -> tuple[int, tuple[int, str]]:
        """The context inside a module span, an autograd node or an optimizer step."""
        owner, stage, phase, direction = self.contexts[context]
        if kind == SPAN:
            self.span_indices.append(index)
            node = self.nodes[int(self.raw.names[index][len(SPAN_PREFIX) :])]
            inside = ("backward", "recompute") if phase == "backward" else ("forward", "forward")
            entered: Context = (node.number, node.stage_within(stage) or "", *inside)
        elif kind == OPTIMIZER_STEP:
            entered = (owner, stage, "optimizer", direction)
        else:
            sequence = self.raw.sequences[index]
            if kind == NODE and sequence >= 0:
                last_owner = self.owners.owner_at(sequence)
            self.backward_ns += self.raw.durations_ns[index]
            if last_owner[0] != NOBODY:
                self.backward_in_modules_ns += self.raw.durations_ns[index]
            entered = (*last_owner, "backward", "backward")
        number = self._numbers.setdefault(entered, len(self.contexts))
        if number == len(self.contexts):
            self.contexts.append(entered)
        return number, last_owner


def classify_name(name: str) -> int:
    """What an event of the profiler is, by its name."""
    if name.startswith(AUTOGRAD):
        return ACCUMULATE if name.endswith("AccumulateGrad") else NODE
    if name.startswith(SPAN_PREFIX):
        return SPAN
    return OPTIMIZER_STEP if name.startswith(OPTIMIZER) else OPERATOR


def _make_operator_table(
    raw: OperatorEvents, sweep: _EventSweep, nodes: NodeTable, on_device: np.typing.NDArray[np.bool_]
) -> pl.DataFrame:
    """Operators of one name, place and shape as one row; `index` lists which events they were."""
    # kernel time by the host event that launched it; kernels without one are counted
    device_ns, kernels = [0] * len(raw), [0] * len(raw)
    if raw.correlations is not None:
        launched_by = {
            raw.correlations[index]: index for index, context in enumerate(sweep.context_of) if context >= 0
        }
        for index in np.flatnonzero(on_device).tolist():
            launcher = launched_by.get(raw.correlations[index])
            if launcher is None:
                sweep.kernels_unlinked += 1
            else:
                device_ns[launcher] += raw.durations_ns[index]
                kernels[launcher] += 1
    frame = pl.DataFrame(
        {
            "name": raw.names,
            "context": sweep.context_of,
            "shapes": [raw.shapes.get(index, "") for index in range(len(raw))],
            "total_ns": raw.durations_ns,
            "below_ns": sweep.below_ns,
            "device_ns": device_ns,
            "kernels": kernels,
        }
    ).with_row_index()
    grouped = (
        frame.filter(pl.col("context") >= 0)
        .group_by("name", "context", "shapes", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("total_ns").sum(),
            (pl.col("total_ns") - pl.col("below_ns")).sum().alias("self_ns"),
            pl.col("device_ns").sum(),
            pl.col("kernels").sum(),
            pl.col("index"),
        )
    )
    places = pl.DataFrame(
        [
            (number, None if owner == NOBODY else nodes[owner].path, stage, phase, direction)
            for number, (owner, stage, phase, direction) in enumerate(sweep.contexts)
        ],
        schema={"context": pl.Int64, **dict.fromkeys(("module", "stage", "phase", "direction"), pl.String)},
        orient="row",
    )
    device = pl.col("device_ns") if raw.on_device is not None else pl.lit(None, pl.Int64).alias("device_ns")
    return grouped.join(places, on="context", how="left").select(
        *("name", "module", "stage", "phase", "direction", "shapes", "count", "total_ns", "self_ns"),
        device,
        "kernels",
        "index",
    )


def _make_intervals(
    raw: OperatorEvents,
    indices: np.typing.NDArray[np.integer],
    starts: np.typing.NDArray[np.int64],
    durations: np.typing.NDArray[np.int64],
) -> pl.DataFrame:
    chosen = np.sort(indices)
    return pl.DataFrame(
        {
            "name": pl.Series(raw.names, dtype=pl.String).gather(chosen),
            "start_ns": starts[chosen],
            "wall_ns": durations[chosen],
        },
        schema={"name": pl.String, "start_ns": pl.Int64, "wall_ns": pl.Int64},
    )


def _find_clock_offset(raw: OperatorEvents, spans: list[int], events: Sequence[int]) -> int:
    """The profiler's clock less ours, from the module spans that both wrote."""
    ours = [
        time_ns for _, what, time_ns, sequence in decode_events(events) if what == ENTER and sequence >= 0
    ]
    theirs = sorted(raw.starts_ns[index] for index in spans)
    if not ours or not theirs:
        return 0
    if len(ours) != len(theirs):
        return theirs[0] - ours[0]
    return int(median(b - a for a, b in zip(ours, theirs, strict=True)))

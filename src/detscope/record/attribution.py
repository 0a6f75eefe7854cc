"""Operators to modules, in both directions. Pure: events in, rows out.

Forward: module spans stand in the same event stream and thread, so nesting decides. Backward: every
autograd node carries the sequence number of the forward operation that made it, and each module knows
the range of numbers it created. `AccumulateGrad` has none: the engine runs it right after the node
that produced the gradient, and it belongs to the same module.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from detscope.record.events import ENTER, EXIT, SPAN_PREFIX, WIDTH
from detscope.record.nodes import NodeTable
from detscope.record.operators import RawEvent

AUTOGRAD = "autograd::engine::evaluate_function: "
OPTIMIZER = "Optimizer."
NOBODY = -1


@dataclass(frozen=True)
class Ownership:
    """Which call created which autograd nodes: change points over sequence numbers."""

    sequences: tuple[int, ...]
    owners: tuple[int, ...]  # node numbers; NOBODY outside of the model
    stages: tuple[str, ...]

    def at(self, sequence: int) -> tuple[int, str]:
        """Owner and stage of the autograd node with this number."""
        index = bisect_right(self.sequences, sequence) - 1
        return (NOBODY, "") if index < 0 else (self.owners[index], self.stages[index])


def ownership(events: Sequence[int], nodes: NodeTable) -> Ownership:
    """Change points from the events of one or more steps, in order."""
    stack: list[tuple[int, str]] = []
    points: dict[int, tuple[int, str]] = {}
    for index in range(0, len(events), WIDTH):
        code, sequence = events[index], events[index + 2]
        number, what = code >> 2, code & 3
        if sequence < 0 or what not in (ENTER, EXIT):
            continue
        if what == ENTER:
            stage = nodes[number].stage or (stack[-1][1] if stack else "")
            stack.append((number, stage))
        else:
            while stack and stack.pop()[0] != number:
                continue
        points[sequence] = stack[-1] if stack else (NOBODY, "")
    ordered = sorted(points.items())
    return Ownership(
        tuple(sequence for sequence, _ in ordered),
        tuple(owner for _, (owner, _) in ordered),
        tuple(stage for _, (_, stage) in ordered),
    )


@dataclass
class OperatorRow:
    """Operators of one name, place and shape."""

    name: str
    owner: int
    stage: str
    phase: str
    direction: str
    shapes: str
    count: int = 0
    total_ns: int = 0
    self_ns: int = 0
    device_ns: int = 0
    kernels: int = 0


@dataclass
class Attribution:
    """The result for a window of steps."""

    rows: list[OperatorRow]
    spans: list[tuple[str, int, int, str]] = field(default_factory=list)  # track, start, duration, name
    backward_ns: int = 0
    backward_in_modules_ns: int = 0
    kernels_unlinked: int = 0
    clock_offset_ns: int = 0  # profiler time minus recorder time

    @property
    def backward_share(self) -> float | None:
        """Share of autograd time that belongs to modules."""
        return self.backward_in_modules_ns / self.backward_ns if self.backward_ns else None


@dataclass(slots=True)
class _Open:
    end_ns: int
    row: OperatorRow | None
    owner: int
    stage: str
    phase: str
    direction: str
    is_span: bool


def attribute(raw: Sequence[RawEvent], nodes: NodeTable, events: Sequence[int]) -> Attribution:
    """Give every operator of the window a module, a stage, a phase and a direction."""
    owners = ownership(events, nodes)
    table: dict[tuple[str, int, str, str, str, str], OperatorRow] = {}
    result = Attribution([])
    by_thread: dict[int, list[RawEvent]] = defaultdict(list)
    for event in raw:
        if not event.on_device:
            by_thread[event.thread].append(event)
    row_of_launch: dict[int, OperatorRow] = {}
    for thread_events in by_thread.values():
        thread_events.sort(key=lambda event: (event.start_ns, -event.duration_ns))
        _sweep(thread_events, nodes, owners, table, row_of_launch, result)
    for event in raw:
        if event.on_device:
            row = row_of_launch.get(event.correlation)
            if row is None:
                result.kernels_unlinked += 1
            else:
                row.device_ns += event.duration_ns
                row.kernels += 1
            result.spans.append(("kernels", event.start_ns, event.duration_ns, event.name))
    result.rows = list(table.values())
    result.clock_offset_ns = _clock_offset(raw, events)
    return result


def _sweep(
    events: list[RawEvent],
    nodes: NodeTable,
    owners: Ownership,
    table: dict[tuple[str, int, str, str, str, str], OperatorRow],
    row_of_launch: dict[int, OperatorRow],
    result: Attribution,
) -> None:
    stack: list[_Open] = []
    last_owner: tuple[int, str] = (NOBODY, "")
    for event in events:
        while stack and stack[-1].end_ns <= event.start_ns:
            stack.pop()
        parent = stack[-1] if stack else None
        if parent:
            owner, stage, phase, direction = parent.owner, parent.stage, parent.phase, parent.direction
        else:
            owner, stage, phase, direction = NOBODY, "", "other", "forward"
        end_ns = event.start_ns + event.duration_ns
        if event.name.startswith(SPAN_PREFIX):
            node = nodes[int(event.name[len(SPAN_PREFIX) :])]
            in_backward = phase == "backward"
            stack.append(
                _Open(
                    end_ns,
                    None,
                    node.number,
                    node.stage or stage,
                    phase if in_backward else "forward",
                    "recompute" if in_backward else "forward",
                    True,
                )
            )
            continue
        if event.name.startswith(AUTOGRAD):
            owner, stage = owners.at(event.sequence) if event.sequence >= 0 else last_owner
            if event.name.endswith("AccumulateGrad"):
                owner, stage = last_owner
            last_owner = owner, stage
            phase, direction = "backward", "backward"
            result.backward_ns += event.duration_ns
            if owner != NOBODY:
                result.backward_in_modules_ns += event.duration_ns
        elif event.name.startswith(OPTIMIZER):
            phase = "optimizer"
        key = (event.name, owner, stage, phase, direction, event.shapes)
        row = table.get(key)
        if row is None:
            row = table[key] = OperatorRow(*key)
        row.count += 1
        row.total_ns += event.duration_ns
        row.self_ns += event.duration_ns
        above = next((entry.row for entry in reversed(stack) if entry.row is not None), None)
        if above is not None:
            above.self_ns -= event.duration_ns
        row_of_launch[event.correlation] = row
        result.spans.append(("operators", event.start_ns, event.duration_ns, event.name))
        stack.append(_Open(end_ns, row, owner, stage, phase, direction, False))


def _clock_offset(raw: Sequence[RawEvent], events: Sequence[int]) -> int:
    """The profiler's clock against ours, from the module spans that both wrote."""
    ours = [
        events[i + 1] for i in range(0, len(events), WIDTH) if events[i] & 3 == ENTER and events[i + 2] >= 0
    ]
    theirs = sorted(event.start_ns for event in raw if event.name.startswith(SPAN_PREFIX))
    if not ours or len(ours) != len(theirs):
        return theirs[0] - ours[0] if ours and theirs else 0
    return int(median(b - a for a, b in zip(ours, theirs, strict=True)))

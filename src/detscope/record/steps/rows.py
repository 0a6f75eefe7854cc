"""From accounts of steps to rows of the run's tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from detscope.record.loader import BatchTiming
from detscope.record.steps.events import (
    ACTION_MASK,
    BATCH_ARRIVED,
    ENTER,
    EXIT,
    NODE_SHIFT,
    STEP_BEGINS,
    STEP_ENDS,
)
from detscope.record.steps.nodes import PHASES, NodeTable
from detscope.record.steps.replay import BACKWARD, FORWARD, Slice, StepAccount

Row = tuple[Any, ...]


def make_step_rows(step: int, epoch: int, mode: str, account: StepAccount) -> list[Row]:
    """The whole step and each of its phases."""
    spent = {"step": account.wall_ns, **account.phases}
    return [
        (step, epoch, mode, phase, account.start_ns, spent.get(phase, 0), None) for phase in ("step", *PHASES)
    ]


def make_span_rows(step: int, nodes: NodeTable, account: StepAccount) -> list[Row]:
    """Modules, methods, functions, regions, stages, and what lies outside of all of them."""
    rows: list[Row] = []
    for key in sorted(set(account.total_ns) | set(account.self_ns)):
        number, direction = key
        about = (nodes[number].kind, nodes[number].path, direction, account.calls.get(key, 0))
        rows.append((step, *about, account.total_ns.get(key, 0), account.self_ns.get(key, 0), None, None))
    for (stage, direction), duration in sorted(account.stages.items()):
        rows.append((step, "stage", stage, direction, 1, duration, duration, None, None))
    for phase in (FORWARD, BACKWARD):
        duration = account.outside.get(phase, 0)
        rows.append((step, "outside", phase, phase, 1, duration, duration, None, None))
    return rows


def make_loader_rows(step: int, timing: BatchTiming, wait_ns: int) -> list[Row]:
    """One batch's making, by region, and the wait for it."""
    wait = (wait_ns, timing.receive_ns(wait_ns), timing.tensors)
    whole = (timing.start_ns, timing.end_ns - timing.start_ns, timing.images, *wait)
    rows: list[Row] = [(step, timing.worker, timing.pid, "batch", *whole)]
    rows += [
        (step, timing.worker, timing.pid, region, start_ns, end_ns - start_ns, timing.images, *(3 * [None]))
        for region, start_ns, end_ns in timing.spans
    ]
    return rows


def make_transform_rows(step: int, timing: BatchTiming, where: str | None = None) -> list[Row]:
    """What was done to one batch's images, by name; `where` it was not the loader."""
    if timing.work is None:
        return []
    parts, looks, stands_for, paid_ns = timing.work
    spent_ns, images = timing.end_ns - timing.start_ns - paid_ns, timing.images
    where = where or ("loop" if timing.worker < 0 else "worker")
    rows: list[Row] = [("batch", "batch", None, None, where, images, spent_ns, spent_ns, 1, 1, None)]
    rows += [(*part[:4], where, images, *part[4:], None) for part in parts]
    rows += [
        (name, "sampled", line, inside, where, images, None, None, None, None, times)
        for inside, name, line, times in looks
    ]
    return [(step, timing.worker, *row, stands_for) for row in rows]


def make_timeline_rows(step: int, nodes: NodeTable, account: StepAccount, clock: str = "") -> list[Row]:
    """Intervals for the trace: phases, stages and modules, as they nest; `clock` begins names of tracks."""
    rows = _make_host_timeline(step, nodes, account)
    if not clock:
        return rows
    # marks of a device tell modules in turn: what is between them is not theirs
    return [(one, f"{clock}{track}", *rest) for one, track, *rest in rows if track in ("phases", "stages")]


def _make_host_timeline(step: int, nodes: NodeTable, account: StepAccount) -> list[Row]:
    slices = account.slices
    rows: list[Row] = [(step, "steps", f"step {step}", "", account.start_ns, account.wall_ns)]
    for phase, start_ns, end_ns in _join_slices((s, s.phase) for s in slices):
        rows.append((step, "phases", phase, "", start_ns, end_ns - start_ns))
    rows += _make_module_rows(step, nodes, slices)
    for (stage, direction), start_ns, end_ns in _join_slices((s, (s.stage, s.direction)) for s in slices):
        if stage is not None:
            rows.append((step, "stages", stage, direction, start_ns, end_ns - start_ns))
    return rows


def _make_module_rows(step: int, nodes: NodeTable, slices: Sequence[Slice]) -> list[Row]:
    """Modules as they nest, outermost first; one pass, since it is done between two steps."""
    levels: list[list[Row]] = []  # by depth
    since: list[int] = []  # when the open ones began
    stack: tuple[int, ...] = ()
    direction, end_ns = "", 0
    for piece in (*slices, None):
        coming = () if piece is None else piece.ancestors
        kept = 0
        if piece is not None and piece.direction == direction and piece.start_ns == end_ns:
            places = (depth for depth, (a, b) in enumerate(zip(stack, coming, strict=False)) if a != b)
            kept = len(stack) if stack == coming else next(places, min(len(stack), len(coming)))
        for depth in range(kept, len(stack)):
            node = nodes[stack[depth]]
            begun_ns = since[depth]
            name = node.path or node.type_name
            levels[depth].append((step, "modules", name, direction, begun_ns, end_ns - begun_ns))
        if piece is None:
            break
        del since[kept:]
        since += [piece.start_ns] * (len(coming) - kept)
        levels += [[] for _ in range(len(coming) - len(levels))]
        stack, direction, end_ns = coming, piece.direction, piece.end_ns
    return [row for level in levels for row in level]


def _join_slices(keyed: Iterable[tuple[Slice, Any]]) -> Iterable[tuple[Any, int, int]]:
    current: Any = None
    start_ns = end_ns = 0
    begun = False
    for piece, key in keyed:
        if begun and key == current and piece.start_ns == end_ns:
            end_ns = piece.end_ns
            continue
        if begun:
            yield current, start_ns, end_ns
        current, start_ns, end_ns, begun = key, piece.start_ns, piece.end_ns, True
    if begun:
        yield current, start_ns, end_ns


SOURCE, METRIC = "step", "processor_ns"


def sum_processor_time(marks: Sequence[int], nodes: NodeTable) -> dict[str, int]:
    """Processor time by phase, and of the whole "step"; between two marks one phase runs."""
    spent: dict[str, int] = {}
    stack: list[str] = []
    last_ns: int | None = None
    first_ns = 0
    for index in range(0, len(marks) - 1, 2):
        code, now_ns = marks[index], marks[index + 1]
        if code == STEP_BEGINS:
            spent, stack, last_ns, first_ns = {}, ["data"], now_ns, now_ns
            continue
        if last_ns is None:
            continue
        phase = stack[-1] if stack else "other"
        spent[phase] = spent.get(phase, 0) + now_ns - last_ns
        last_ns = now_ns
        if code == BATCH_ARRIVED:
            stack = []
        elif code == STEP_ENDS:
            spent["step"] = now_ns - first_ns
        elif code & ACTION_MASK == ENTER:
            stack.append(nodes[code >> NODE_SHIFT].path)
        elif code & ACTION_MASK == EXIT and stack:
            stack.pop()
    return spent if "step" in spent else {}


def make_processor_rows(start_ns: int, marks: Sequence[int], nodes: NodeTable) -> list[tuple[Any, ...]]:
    """Rows of `telemetry` that belong to the step which began at `start_ns`."""
    return [
        (start_ns, SOURCE, f"{METRIC} {phase}", float(spent), "ns")
        for phase, spent in sum_processor_time(marks, nodes).items()
    ]

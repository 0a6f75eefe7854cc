"""From the events of a trace to its steps, phases, modules and stages, and from a kernel to its place."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detscope.ingest.kineto import naming
from detscope.ingest.kineto.nesting import (
    NOBODY,
    NestedIntervals,
    Numbers,
    find_by_key,
    find_interval,
    merge_intervals,
    take_values,
)
from detscope.ingest.kineto.trace import EventColumns, Flags, TraceEvents, ValueNumbers, join_columns

ROOT = ""

PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")
DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(6)
_PHASE_MARKS = (
    (DATA, naming.LOADER_MARK),
    (OPTIMIZER, naming.OPTIMIZER_MARK),
    (FORWARD, naming.FORWARD_MARK),
    (BACKWARD, naming.BACKWARD_MARK),
)
_NOTHING = np.empty(0, np.int64)

IN_FORWARD, IN_BACKWARD, IN_RECOMPUTE = range(3)
DIRECTIONS = ("forward", "backward", "recompute")
_MOVES = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::cuda")


@dataclass(frozen=True)
class ModuleIntervals:
    """Intervals of modules, or of stages, each with its path."""

    intervals: EventColumns
    path: Numbers  # into `paths`
    paths: list[str]
    types: dict[str, str]
    is_backward: Flags
    nest: NestedIntervals
    parents: Numbers
    made_of: str

    def __len__(self) -> int:
        return len(self.intervals)

    def find_path(self, threads: NDArray[np.integer], times_ns: Numbers) -> Numbers:
        """The path of the innermost interval around each moment on a thread, or `NOBODY`."""
        return take_values(self.path, self.nest.find_innermost(threads, times_ns))


def find_modules(trace: TraceEvents) -> ModuleIntervals:
    """Modules by Python events, by detscope's own trace, or by annotations that spell a path."""
    if "own module" in trace.own:
        return _read_own(trace, "own module")
    python = trace.python.take_rows(trace.check_names(trace.python, naming.MODULE_EVENT.search))
    if len(python):  # paths of types and numbers ("Encoder_0.Linear_2"): it does not have attribute names
        labels = trace.map_names(python, lambda name: name.partition("nn.Module: ")[2])
        walk = _walk_down(trace.nest_events(python))
        one_root = len({labels[index] for index, parent in walk if parent == NOBODY}) == 1
        paths: dict[int, str] = {}
        types: dict[str, str] = {}
        for index, parent in walk:
            above = "" if parent == NOBODY else paths[parent]
            path = f"{above}.{labels[index]}" if above else labels[index]
            paths[index] = path = ROOT if parent == NOBODY and one_root else path
            types[path] = labels[index].rpartition("_")[0] or labels[index]
        whole = [paths[i] for i in range(len(python))]
        return _make_intervals(trace, python, whole, types, "nn.Module events")
    spelled = trace.annotations.take_rows(trace.check_names(trace.annotations, naming.module_path))
    names = trace.map_names(spelled, lambda name: naming.module_path(name) or (ROOT, ""))
    made_of = "annotations" if names else ""
    return _make_intervals(trace, spelled, [path for path, _ in names], dict(names), made_of)


def find_stages(trace: TraceEvents, modules: ModuleIntervals) -> ModuleIntervals:
    """Stages by detscope's own trace, by annotations that name one, else the root's direct children."""
    if "own stage" in trace.own:
        return _read_own(trace, "own stage")
    found = trace.annotations.take_rows(trace.check_names(trace.annotations, naming.stage_name))
    if len(found):
        names = trace.map_names(found, naming.stage_name)
        paths: dict[int, str] = {}
        for index, parent in _walk_down(trace.nest_events(found)):
            # a stage inside another is a part of it: its path begins with the other's
            above = paths.get(parent, names[index])
            paths[index] = f"{above}.{names[index]}" if above != names[index] else above
        return _make_intervals(trace, found, [paths[i] for i in range(len(found))], {}, "annotations")
    texts = [modules.paths[code] for code in modules.path.tolist()]
    chosen = np.array([bool(path) and "." not in path for path in texts], bool)
    if not chosen.any() or ROOT not in modules.paths:
        return _make_intervals(trace, join_columns(), [], {}, "")
    paths_chosen = [path for path, good in zip(texts, chosen.tolist(), strict=True) if good]
    children = modules.intervals.take_rows(chosen)
    return _make_intervals(trace, children, paths_chosen, {}, "the root's children")


def _walk_down(nest: NestedIntervals) -> list[tuple[int, int]]:
    """Every interval with the one around it, the outer ones first."""
    order = np.argsort(nest.depth, kind="stable")
    return list(zip(order.tolist(), nest.find_parents()[order].tolist(), strict=True))


def _read_own(trace: TraceEvents, role: str) -> ModuleIntervals:
    found = trace.own[role]
    parted = trace.map_names(found, naming.without_direction)
    # the root is drawn with its type for a name; attributes do not begin with a capital
    paths = [ROOT if name[:1].isupper() and "." not in name else name for name, _ in parted]
    backward = np.array([direction != "forward" for _, direction in parted], bool)
    return _make_intervals(trace, found, paths, {}, "detscope's own trace", backward)


def _make_intervals(
    trace: TraceEvents,
    found: EventColumns,
    paths: list[str],
    types: dict[str, str],
    made_of: str,
    backward: Flags | None = None,
) -> ModuleIntervals:
    nest, numbers = trace.nest_events(found), ValueNumbers()
    codes = np.array([numbers[path] for path in paths], np.int64)
    if backward is None:
        backward = np.zeros(len(found), bool)
    return ModuleIntervals(found, codes, list(numbers), types, backward, nest, nest.find_parents(), made_of)


@dataclass(frozen=True)
class TraceSteps:
    """Steps in order of time; they do not overlap."""

    numbers: Numbers
    starts_ns: Numbers
    ends_ns: Numbers
    names: list[str]
    made_of: str  # what marked them; empty where there are none

    def __len__(self) -> int:
        return len(self.numbers)

    def find_index(self, times_ns: Numbers) -> Numbers:
        """The index of the step in which each time lies, or `NOBODY`."""
        return find_interval(self.starts_ns, self.ends_ns, times_ns)

    def find_number(self, times_ns: Numbers) -> Numbers:
        """The number of the step in which each time lies, or `NOBODY`."""
        return take_values(self.numbers, self.find_index(times_ns))


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
    marks = (naming.STEP_MARK, naming.OPTIMIZER_MARK, naming.LOADER_MARK)
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
    marks = _take_named(trace, trace.annotations, naming.STEP_MARK)
    if len(marks):
        return _read_marks(trace, marks, naming.STEP_MARK, "ProfilerStep marks")
    annotations = _take_thread(trace.annotations, thread)
    optimizer = _take_named(trace, annotations, naming.OPTIMIZER_STEP)
    loader = _take_named(trace, annotations, naming.LOADER_MARK)
    hosts = [_take_thread(part, thread) for part in (annotations, trace.operators, trace.runtime)]
    if len(optimizer) and not len(optimizer) > len(loader) > 0:
        ends = np.sort(optimizer.end_ns)
        first = min(int(part.start_ns.min(initial=ends[0])) for part in hosts[:2])
        return _number_steps(np.concatenate([[first], ends[:-1]]), ends, "ends of the optimizer's step")
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
    return TraceSteps(_NOTHING, _NOTHING, _NOTHING, [], "")


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


def _number_steps(starts: Numbers, ends: Numbers, made_of: str) -> TraceSteps:
    names = [f"step {number}" for number in range(len(starts))]
    return TraceSteps(np.arange(len(starts)), starts, ends, names, made_of)


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


@dataclass(frozen=True)
class TraceAttribution:
    """Everything that was found out about the events of a trace."""

    trace: TraceEvents
    nest: NestedIntervals  # of the operators
    steps: TraceSteps
    phases: TracePhases
    modules: ModuleIntervals
    stages: ModuleIntervals
    # for each event of the device: the runtime call that queued it and the operator around that call
    launch_call: Numbers
    launch_operator: Numbers
    # for each operator
    direction: Numbers
    module: Numbers  # index into the modules' paths
    stage: Numbers
    phase: Numbers
    offset_ns: int = 0

    @property
    def has_own_backward(self) -> bool:
        """Whether the trace has intervals of modules in backward; else the autograd nodes tell."""
        return bool(self.modules.is_backward.any())

    @property
    def launch_moments(self) -> Numbers:
        """When each event of the device was queued; its own begin where that is not known."""
        known = self.launch_call != NOBODY
        queued = take_values(self.trace.runtime.start_ns, self.launch_call)
        return np.where(known, queued, self.trace.device.start_ns)

    @property
    def is_kernel(self) -> Flags:
        """Events of the device that are kernels of a known operator."""
        kind = self.trace.device.get_extra("kind")
        return np.asarray((kind == naming.DEVICE_ROLES.index("kernel")) & (self.launch_operator >= 0))

    @property
    def is_top_backward(self) -> Flags:
        """The outermost operators of the autograd engine."""
        return np.asarray((self.nest.depth == 0) & (self.direction == IN_BACKWARD))


def attribute_events(trace: TraceEvents, offset_ns: int = 0) -> TraceAttribution:
    """Find steps, phases, modules and stages, and link the device's work to them."""
    operators = trace.operators
    thread = find_main_thread(trace) if not trace.own else 0
    nest = trace.nest_events(operators)
    steps, modules = find_steps(trace, thread), find_modules(trace)
    stages = find_stages(trace, modules)
    call, operator = _link_launches(trace, nest)
    autograd = trace.check_names(operators, naming.BACKWARD_OPERATOR.search)
    direction, module, stage = _place_operators(trace, nest, autograd, modules, stages)
    transfers = _find_transfers(trace, nest, operator, modules, stages)
    phases = find_phases(trace, thread, nest, autograd, transfers, (modules, stages))
    phase = np.where(direction > 0, BACKWARD, phases.find_phase(operators.start_ns))
    # gradient hooks and the like run on the engine's threads between its own events
    engine = np.isin(operators.thread, np.setdiff1d(operators.thread[autograd], [thread]))
    direction[(phase == BACKWARD) & (direction == IN_FORWARD) & engine] = IN_BACKWARD
    launches, places = (call, operator), (direction, module, stage, phase)
    return TraceAttribution(
        trace, nest, steps, phases, modules, stages, *launches, *places, offset_ns=offset_ns
    )


def _link_launches(trace: TraceEvents, nest: NestedIntervals) -> tuple[Numbers, Numbers]:
    """By correlation to the call; by time on its thread to the operator, else by the external id."""
    runtime, device, operators = trace.runtime, trace.device, trace.operators
    threads, times_ns, ids = runtime.thread, runtime.start_ns, operators.get_extra("external")
    found = nest.find_innermost(threads, times_ns)  # the innermost operator around each call
    lost = found == NOBODY
    if lost.any():
        by_id = find_by_key(ids, _keep_positive(runtime.get_extra("external")[lost]))
        same_thread = take_values(operators.thread, by_id) == threads[lost]
        # times rounded to microseconds put a call at the very end of its operator
        at_end = nest.find_innermost(threads[lost], times_ns[lost], end_counts=True)
        found[lost] = np.where((at_end == NOBODY) & same_thread, by_id, at_end)
    calls = find_by_key(runtime.get_extra("correlation"), _keep_positive(device.get_extra("correlation")))
    operator = take_values(found, calls)
    known = find_by_key(ids, _keep_positive(device.get_extra("external")))
    # without a launch record the external id may still name the operator, unless it only repeats
    # the correlation, as some versions write it
    repeated = device.get_extra("external") == device.get_extra("correlation")
    return calls, np.where((calls == NOBODY) & ~repeated, known, operator)


def _keep_positive(keys: Numbers) -> Numbers:
    return np.where(keys > 0, keys, NOBODY)


def _place_operators(
    trace: TraceEvents,
    nest: NestedIntervals,
    autograd: Flags,
    modules: ModuleIntervals,
    stages: ModuleIntervals,
) -> tuple[Numbers, Numbers, Numbers]:
    """Direction, module and stage of each operator.

    Forward operators by the module running on their thread; backward ones by the node they evaluate.
    """
    operators = trace.operators
    threads, starts = operators.thread, operators.start_ns
    index = np.flatnonzero(autograd)
    engine = trace.nest_events(operators.drop_extra().take_rows(index))
    around = take_values(index, engine.find_innermost(threads, starts))
    module_here = modules.nest.find_innermost(threads, starts)
    begun = take_values(modules.intervals.start_ns, module_here, np.iinfo(np.int64).min)
    again = (around != NOBODY) & (module_here != NOBODY) & (begun > take_values(starts, around))
    again &= take_values(modules.is_backward, module_here, 0) == 0
    direction = np.where(again, IN_RECOMPUTE, np.where(around == NOBODY, IN_FORWARD, IN_BACKWARD))
    module, stage = take_values(modules.path, module_here), stages.find_path(threads, starts)
    back = direction == IN_BACKWARD
    if back.any() and not modules.is_backward.any():
        # by the forward operator that made the autograd node
        sequence = operators.get_extra("sequence")
        numbered = index[sequence[index] >= 0]
        nodes = trace.nest_events(operators.drop_extra().take_rows(numbered))
        node = take_values(sequence, take_values(numbered, nodes.find_innermost(threads[back], starts[back])))
        made = np.flatnonzero((direction == IN_FORWARD) & (sequence >= 0))
        # several operators see one number: the last of them made the node
        made = made[np.argsort(starts[made], kind="stable")]
        origin = take_values(made, find_by_key(sequence[made], node))
        module[back], stage[back] = take_values(module, origin), take_values(stage, origin)
        _fill_accumulate(trace, nest, back, module, stage)
    return direction, module, stage


def _fill_accumulate(
    trace: TraceEvents, nest: NestedIntervals, back: Flags, module: Numbers, stage: Numbers
) -> None:
    """The engine accumulates a gradient right after the node that produced it, and so do we."""
    operators = trace.operators
    accumulates = trace.check_names(operators, lambda name: "AccumulateGrad" in name)
    top = np.flatnonzero(back & (nest.depth == 0))
    top = top[np.lexsort((operators.start_ns[top], operators.thread[top]))]
    if not len(top) or not accumulates.any():
        return
    giver = np.maximum.accumulate(np.where(accumulates[top], 0, np.arange(len(top))))
    same = operators.thread[top[giver]] == operators.thread[top]
    outer = nest.find_among(top, operators.thread, operators.start_ns)
    below = back & (outer != NOBODY)
    below[below] = accumulates[outer[below]]
    for values in (module, stage):
        given = np.where(same, values[top[giver]], NOBODY)
        values[top] = np.where(accumulates[top], given, values[top])
        values[below] = values[outer[below]]


def _find_transfers(
    trace: TraceEvents,
    nest: NestedIntervals,
    launch_operator: Numbers,
    modules: ModuleIntervals,
    stages: ModuleIntervals,
) -> Flags:
    """Operators that are no part of the model and copy from the host to the device."""
    operators, device = trace.operators, trace.device
    copies = device.get_extra("kind") == naming.DEVICE_ROLES.index("copy")
    copies &= trace.check_names(device, lambda name: naming.copy_direction(name) == "HtoD")
    users = launch_operator[copies]
    users = users[users >= 0]
    found = trace.check_names(operators, lambda name: name in _MOVES)
    if not len(users) or not found.any():
        return np.zeros(len(operators), bool)
    top = np.flatnonzero(nest.depth == 0)
    outer = nest.find_among(top, operators.thread[users], operators.start_ns[users])
    found &= np.isin(np.arange(len(operators)), outer)
    for place in (modules, stages):
        found &= place.nest.find_innermost(operators.thread, operators.start_ns) == NOBODY
    return found

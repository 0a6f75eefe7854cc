"""From a kernel to the call that launched it, its operator, module, direction, stage, phase and step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detscope.ingest.kineto import naming
from detscope.ingest.kineto.columns import Flags
from detscope.ingest.kineto.modules import ModuleIntervals, find_modules, find_stages
from detscope.ingest.kineto.nesting import NOBODY, NestedIntervals, Numbers, find_by_key, take_values
from detscope.ingest.kineto.steps import (
    BACKWARD,
    TracePhases,
    TraceSteps,
    find_main_thread,
    find_phases,
    find_steps,
)
from detscope.ingest.kineto.trace import TraceEvents

IN_FORWARD, IN_BACKWARD, IN_RECOMPUTE = range(3)
DIRECTIONS = ("forward", "backward", "recompute")
_MOVES = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::cuda")


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

"""From a kernel to the operator, module, stage, phase and step that it was queued for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from detscope.traces import naming
from detscope.traces.columns import Flags, TraceEvents
from detscope.traces.nesting import NOBODY, NestedIntervals, Numbers, find_by_key, take_values
from detscope.traces.places import (
    IN_BACKWARD,
    IN_FORWARD,
    IN_RECOMPUTE,
    ModuleIntervals,
    find_modules,
    find_stages,
)
from detscope.traces.steps import (
    BACKWARD,
    FORWARD,
    OTHER,
    TracePhases,
    TraceSteps,
    find_main_thread,
    find_phases,
    find_steps,
)

_MOVES = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::cuda", "aten::xpu")


@dataclass(frozen=True)
class RecordedParts:
    """What a recorder knows itself of the events it recorded; a file has to be asked."""

    modules: ModuleIntervals
    stages: ModuleIntervals
    phases: TracePhases | None  # None: nobody marked any
    steps: TraceSteps
    thread: int | None  # that runs the loop


@dataclass(frozen=True)
class DevicePlaces:
    """For each event of the device: where in the program it was queued."""

    direction: Numbers
    module: Numbers  # index into the modules' paths
    stage: Numbers
    phase: Numbers


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

    @cached_property
    def launch_moments(self) -> Numbers:
        """When each event of the device was queued; its own begin where that is not known."""
        known = self.launch_call != NOBODY
        queued = take_values(self.trace.runtime.start_ns, self.launch_call)
        return np.where(known, queued, self.trace.device.start_ns)

    @property
    def unlinked(self) -> int:
        """How many events of the device have no launch record."""
        return int((self.trace.is_work & (self.launch_call < 0)).sum())

    @property
    def is_linked(self) -> Flags:
        """Work of the device whose operator is known."""
        return np.asarray(self.trace.is_work & (self.launch_operator >= 0))

    @property
    def is_top_backward(self) -> Flags:
        """The outermost operators of the autograd engine."""
        return np.asarray((self.nest.depth == 0) & (self.direction == IN_BACKWARD))

    @property
    def backward_times(self) -> tuple[int, int]:
        """Time of the autograd engine, and of that: in nodes that modules made."""
        top = self.is_top_backward
        walls = self.trace.operators.wall_ns[top]
        return int(walls.sum()), int(walls[self.module[top] >= 0].sum())

    @cached_property
    def is_communication(self) -> Flags:
        """Events of the device that exchange data with other ranks."""
        return self.trace.check_names(self.trace.device, naming.COMMUNICATION.search)

    @cached_property
    def device_places(self) -> DevicePlaces:
        """By the operator that queued each; outside of any, by the time of the call."""
        call, operator = self.launch_call, self.launch_operator
        direction, phase = take_values(self.direction, operator), take_values(self.phase, operator)
        module, stage = take_values(self.module, operator), take_values(self.stage, operator)
        alone = (call != NOBODY) & (operator == NOBODY)
        if alone.any() and len(self.phases.labels):
            threads = take_values(self.trace.runtime.thread, call[alone])
            times = self.launch_moments[alone]
            phase[alone] = self.phases.find_phase(times)
            module[alone] = self.modules.find_path(threads, times)
            stage[alone] = self.stages.find_path(threads, times)
            direction[alone] = np.where(phase[alone] == BACKWARD, IN_BACKWARD, IN_FORWARD)
        # the layer whose gradient filled a bucket is not who exchanges it
        module[self.is_communication] = stage[self.is_communication] = NOBODY
        return DevicePlaces(direction, module, stage, phase)


def attribute_events(
    trace: TraceEvents, offset_ns: int = 0, recorded: RecordedParts | None = None
) -> TraceAttribution:
    """Find steps, phases, modules and stages, and link the device's work to them."""
    operators = trace.operators
    thread = recorded.thread if recorded is not None else None
    if thread is None:
        thread = find_main_thread(trace)
    nest = trace.nest_events(operators)
    autograd = trace.check_names(operators, naming.BACKWARD_OPERATOR.search)
    engine = trace.nest_events(operators.drop_extra().take_rows(autograd))
    if recorded is not None:
        modules, stages, steps = recorded.modules, recorded.stages, recorded.steps
    else:
        modules, steps = find_modules(trace, engine), find_steps(trace, thread)
        stages = find_stages(trace, modules, engine)
    call, operator = _link_launches(trace, nest)
    direction, module, stage = _place_operators(trace, autograd, engine, modules, stages)
    if recorded is not None and recorded.phases is not None:
        phases = recorded.phases
    else:
        transfers = _find_transfers(trace, nest, operator, modules, stages)
        phases = find_phases(trace, thread, nest, autograd, transfers, (modules, stages))
    phase = np.where(direction > 0, BACKWARD, phases.find_phase(operators.start_ns))
    phase[(phase == OTHER) & (module != NOBODY)] = FORWARD
    # gradient hooks and the like run on the engine's threads between its own events
    threads = np.isin(operators.thread, np.setdiff1d(operators.thread[autograd], [thread]))
    direction[(phase == BACKWARD) & (direction == IN_FORWARD) & threads] = IN_BACKWARD
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
    autograd: Flags,
    engine: NestedIntervals,
    modules: ModuleIntervals,
    stages: ModuleIntervals,
) -> tuple[Numbers, Numbers, Numbers]:
    """Direction, module and stage of each operator.

    Forward operators by the module running on their thread; backward ones by the node they evaluate.
    """
    operators = trace.operators
    threads, starts = operators.thread, operators.start_ns
    around = take_values(np.flatnonzero(autograd), engine.find_innermost(threads, starts))
    module_here = modules.nest.find_innermost(threads, starts)
    begun = take_values(modules.intervals.start_ns, module_here, np.iinfo(np.int64).min)
    again = (around != NOBODY) & (module_here != NOBODY) & (begun > take_values(starts, around))
    again &= take_values(modules.direction, module_here) != IN_BACKWARD
    direction = np.where(again, IN_RECOMPUTE, np.where(around == NOBODY, IN_FORWARD, IN_BACKWARD))
    module, stage = take_values(modules.path, module_here), stages.find_path(threads, starts)
    back = direction == IN_BACKWARD
    if not modules.has_backward and (back | again).any():
        makers = _find_makers(trace, autograd, direction)
        # what runs again has its modules around it, and not always its stage; its own nodes come after it
        homeless = again & (stage == NOBODY)
        stage[homeless] = take_values(stage, makers[homeless])
        module[back], stage[back] = take_values(module, makers[back]), take_values(stage, makers[back])
        _follow_producers(trace, np.flatnonzero(autograd & back), around, module, stage)
    return direction, module, stage


def _find_makers(trace: TraceEvents, autograd: Flags, direction: Numbers) -> Numbers:
    """For each operator: the forward operator that made the autograd node around it, or `NOBODY`.

    Every thread counts its own sequence numbers, so a node is known by its thread and its number; by its
    number alone where nobody noted the thread.
    """
    operators = trace.operators
    threads, starts, forward = operators.thread, operators.start_ns, operators.get_extra("forward")
    _, sequence = np.unique(operators.get_extra("sequence"), return_inverse=True)
    numbered = operators.get_extra("sequence") >= 0
    nodes = np.flatnonzero(autograd & numbered)
    node = take_values(
        nodes, trace.nest_events(operators.drop_extra().take_rows(nodes)).find_innermost(threads, starts)
    )
    made = np.flatnonzero((direction != IN_BACKWARD) & numbered)
    # several operators see one number: the last of them made the node
    made = made[np.argsort(starts[made], kind="stable")]
    number, of_thread = take_values(sequence, node), take_values(forward, node)
    by_number = find_by_key(sequence[made], number)
    width = len(trace.threads) + 1
    by_both = find_by_key(
        sequence[made] * width + threads[made], np.where(node == NOBODY, NOBODY, number * width + of_thread)
    )
    return take_values(made, np.where(of_thread == NOBODY, by_number, by_both))


def _follow_producers(
    trace: TraceEvents, runs: Numbers, around: Numbers, module: Numbers, stage: Numbers
) -> None:
    """The engine accumulates a gradient right after the node that produced it, and so do we."""
    operators = trace.operators
    runs = runs[np.lexsort((operators.start_ns[runs], operators.thread[runs]))]
    is_sink = trace.check_names(operators, lambda name: "AccumulateGrad" in name)
    if not is_sink[runs].any():
        return
    giver = runs[np.maximum.accumulate(np.where(is_sink[runs], 0, np.arange(len(runs))))]
    same = operators.thread[giver] == operators.thread[runs]
    below = (around != NOBODY) & is_sink[around]
    for values in (module, stage):
        values[runs] = np.where(is_sink[runs] & ~same, NOBODY, values[giver])
        values[below] = values[around[below]]


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

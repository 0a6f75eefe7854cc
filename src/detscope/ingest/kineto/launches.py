"""From a kernel to the call that launched it, its operator, module, direction, stage, phase and step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detscope.ingest.kineto.modules import Places
from detscope.ingest.kineto.names import DEVICE_ROLES, copy_direction
from detscope.ingest.kineto.nesting import NOBODY, Nest, Numbers, find_by_key, pick
from detscope.ingest.kineto.scene import Scene

FORWARD, BACKWARD, RECOMPUTE = range(3)
DIRECTIONS = ("forward", "backward", "recompute")
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Launches:
    """For each event of the device: the runtime call that queued it and the operator around that call."""

    runtime: Numbers
    operator: Numbers


@dataclass(frozen=True)
class OperatorPlaces:
    """For each operator: where in the model it belongs."""

    direction: Numbers
    module: Numbers  # index into the modules' paths
    stage: Numbers


def link_launches(scene: Scene, nest: Nest) -> Launches:
    """By correlation to the call; by time on its thread to the operator, else by the external id."""
    runtime, device, operators = scene.runtime, scene.device, scene.operators
    calls = find_by_key(runtime.value("correlation"), _positive(device.value("correlation")))
    around = operator_around(scene, nest, runtime.thread, runtime.start_ns, runtime.value("external"))
    operator = pick(around, calls)
    known = find_by_key(operators.value("external"), _positive(device.value("external")))
    # without a launch record the external id may still name the operator, unless it only repeats
    # the correlation, as some versions write it
    repeated = device.value("external") == device.value("correlation")
    return Launches(calls, np.where((calls == NOBODY) & ~repeated, known, operator))


def operator_around(
    scene: Scene, nest: Nest, threads: NDArray[np.int32], times_ns: Numbers, external: Numbers
) -> Numbers:
    """The innermost operator around moments on threads."""
    found = nest.innermost(threads, times_ns)
    lost = found == NOBODY
    if lost.any():
        operators = scene.operators
        by_id = find_by_key(operators.value("external"), _positive(external[lost]))
        same_thread = pick(operators.thread, by_id) == threads[lost]
        # times rounded to microseconds put a call at the very end of its operator
        at_end = nest.innermost(threads[lost], times_ns[lost], end_counts=True)
        found[lost] = np.where((at_end == NOBODY) & same_thread, by_id, at_end)
    return found


def _positive(keys: Numbers) -> Numbers:
    return np.where(keys > 0, keys, NOBODY)


def place_operators(
    scene: Scene, nest: Nest, autograd: Flags, modules: Places, stages: Places
) -> OperatorPlaces:
    """Forward operators by the module running on their thread; backward ones by the node they evaluate."""
    operators = scene.operators
    index = np.flatnonzero(autograd)
    inside = Nest(scene.axis, operators.thread[index], operators.start_ns[index], operators.wall_ns[index])
    around = pick(index, inside.innermost(operators.thread, operators.start_ns))
    module_here = modules.nest.innermost(operators.thread, operators.start_ns)
    stage_here = stages.nest.innermost(operators.thread, operators.start_ns)
    begun = pick(modules.intervals.start_ns, module_here, np.iinfo(np.int64).min)
    again = (around != NOBODY) & (module_here != NOBODY) & (begun > pick(operators.start_ns, around))
    again &= ~_directions_backward(modules, module_here)
    direction = np.where(again, RECOMPUTE, np.where(around == NOBODY, FORWARD, BACKWARD))
    module, stage = pick(modules.path, module_here), pick(stages.path, stage_here)
    back = direction == BACKWARD
    if back.any() and not modules.direction_backward.any():
        origin = _forward_operator(scene, index, direction, back)
        module[back], stage[back] = pick(module, origin), pick(stage, origin)
        _fill_accumulate(scene, nest, back, module, stage)
    return OperatorPlaces(direction, module, stage)


def _directions_backward(modules: Places, index: Numbers) -> Flags:
    return np.asarray(pick(modules.direction_backward, index, 0) == 1)


def _forward_operator(scene: Scene, index: Numbers, direction: Numbers, back: Flags) -> Numbers:
    """For each backward operator: the forward operator that made the autograd node it belongs to."""
    operators = scene.operators
    sequence = operators.value("sequence")
    numbered = index[sequence[index] >= 0]
    numbered_nest = Nest(
        scene.axis, operators.thread[numbered], operators.start_ns[numbered], operators.wall_ns[numbered]
    )
    where = numbered_nest.innermost(operators.thread[back], operators.start_ns[back])
    node = pick(sequence, pick(numbered, where))
    made = np.flatnonzero((direction == FORWARD) & (sequence >= 0))
    # several operators see one number: the last of them made the node
    made = made[np.argsort(operators.start_ns[made], kind="stable")]
    return pick(made, find_by_key(sequence[made], node))


def _fill_accumulate(scene: Scene, nest: Nest, back: Flags, module: Numbers, stage: Numbers) -> None:
    """The engine accumulates a gradient right after the node that produced it, and so do we."""
    operators = scene.operators
    accumulates = scene.flags(operators, lambda name: "AccumulateGrad" in name)
    top = np.flatnonzero(back & (nest.depth == 0))
    top = top[np.lexsort((operators.start_ns[top], operators.thread[top]))]
    if not len(top) or not accumulates.any():
        return
    position = np.arange(len(top))
    giver = np.maximum.accumulate(np.where(accumulates[top], 0, position))
    same = operators.thread[top[giver]] == operators.thread[top]
    for values in (module, stage):
        given = np.where(same, values[top[giver]], NOBODY)
        values[top] = np.where(accumulates[top], given, values[top])
    outer = nest.innermost_of(top, operators.thread, operators.start_ns)
    below = back & (outer != NOBODY)
    below[below] = accumulates[outer[below]]
    module[below], stage[below] = module[outer[below]], stage[outer[below]]


def launches_a_transfer(
    scene: Scene, nest: Nest, launches: Launches, modules: Places, stages: Places
) -> Flags:
    """Operators that are no part of the model and copy from the host to the device."""
    operators, device = scene.operators, scene.device
    copies = device.value("kind") == DEVICE_ROLES.index("copy")
    copies &= scene.flags(device, lambda name: copy_direction(name) == "HtoD")
    users = launches.operator[copies]
    flags = np.zeros(len(operators), bool)
    users = users[users >= 0]
    if len(users):
        top = np.flatnonzero(nest.depth == 0)
        outer = nest.innermost_of(top, operators.thread[users], operators.start_ns[users])
        flags[outer[outer >= 0]] = True
    moves = scene.flags(operators, lambda name: name in _MOVES)
    free = np.ones(len(operators), bool)
    for places in (modules, stages):
        free &= places.nest.innermost(operators.thread, operators.start_ns) == NOBODY
    return flags & moves & free


_MOVES = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::cuda")

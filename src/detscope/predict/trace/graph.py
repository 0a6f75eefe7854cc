"""From the operators of a traced forward pass to a layer graph: what latency models read.

Operators that are no layers (views, and what detectors do with anchors, boxes and indices) take a few
microseconds each, most of them the call itself, and a detector's step has hundreds. They are counted at the
two traced batch sizes, which tells how many there are in every step and how many per image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from detscope.predict.layers import kinds
from detscope.predict.layers.graph import Convolution, LayerGraph, Operation, Shape, SideOperators
from detscope.predict.trace.step import BACKWARD, FORWARD, OperatorCall, TensorRecord, TracedStep

_KINDS = {
    "convolution": kinds.CONVOLUTION,
    "addmm": kinds.LINEAR,
    "mm": kinds.LINEAR,
    "native_batch_norm": kinds.BATCH_NORM,
    "relu": kinds.RELU,
    "relu_": kinds.RELU,
    "hardtanh": kinds.RELU,
    "hardtanh_": kinds.RELU,
    "add": kinds.ADD,
    "add_": kinds.ADD,
    "cat": kinds.CONCATENATE,
    "max_pool2d_with_indices": kinds.MAX_POOL,
    "mean": kinds.AVERAGE_POOL,
    "avg_pool2d": kinds.AVERAGE_POOL,
    "_adaptive_avg_pool2d": kinds.AVERAGE_POOL,
    "native_dropout": kinds.DROPOUT,
} | dict.fromkeys(
    (
        "silu", "silu_", "gelu", "sigmoid", "sigmoid_", "hardswish", "hardswish_", "hardsigmoid",
        "hardsigmoid_", "tanh", "elu", "leaky_relu", "leaky_relu_", "mul", "mul_",
    ),
    kinds.ACTIVATION,
)  # fmt: skip
_PAIR = 2
_OF_LAYERS = frozenset({"aten.empty", "aten.detach", "aten.t", "aten.alias", "aten.lift_fresh"})
_READS_ONE_NUMBER = "aten._local_scalar_dense"
# of the backward pass only what belongs to views: all else was measured with its layer
_VIEWS_BACKWARD = frozenset({"aten.view", "aten.permute", "aten.select", "aten.unsqueeze", "aten.transpose"})
_COPIES_BACKWARD = frozenset({"aten.select_backward", "aten.slice_backward", "aten.stack"})
Key = tuple[str, str]  # kind and stage


def make_graph(name: str, step: TracedStep, family: str = "") -> LayerGraph:
    """The forward pass of a step; operators on nothing but constants and weights are left out."""
    operations = tuple(operation for _, operation in list_forward_calls(step) if operation is not None)
    return LayerGraph(name, operations, family)


def list_forward_calls(step: TracedStep) -> Iterator[tuple[OperatorCall, Operation | None]]:
    """Every operator of the forward pass, with its operation where it is one of the graph's.

    A parameter belongs to the operation that reads it first; heads that see several levels share theirs.
    """
    makers = dict.fromkeys(step.images, step.images[0])  # blocks of the data's way -> tensor of the graph
    trained = {number: step.log.blocks[number].size_bytes // 4 for number in step.trained}
    for call in step.log.calls:
        if call.phase == FORWARD:
            operation = _make_operation(call, makers, trained, step.batch)
            if operation is not None:
                for one in list_tensors(call.arguments):
                    trained.pop(one.block, None)
            yield call, operation


def _make_operation(
    call: OperatorCall, makers: dict[int, int], trained: Mapping[int, int], batch: int
) -> Operation | None:
    tensors = list_tensors(call.arguments)
    given = [one for one in tensors if one.block in makers and one.dtype.is_floating_point]
    made = [one for one in call.outputs if one.dtype.is_floating_point and prod(one.shape)]
    if not given or not made:
        return None
    output = made[0]
    in_place = call.name.endswith("_") and output.block in (one.block for one in given)
    if output.block in makers and not in_place:  # as a view: another shape of the same memory
        return None
    makers.setdefault(output.block, output.block)
    kind = call.name.partition(".")[2]
    kind = _KINDS.get(kind, kind) if call.name.startswith("aten.") else call.name
    return Operation(
        kind,
        tuple(makers[one.block] for one in given),
        tuple(_of_one_image(one.shape, batch) for one in given),
        makers[output.block],
        _of_one_image(output.shape, batch),
        tuple(trained[one.block] for one in tensors if one.block in trained),
        _read_convolution(call, given[0]) if kind == kinds.CONVOLUTION else None,
        call.stage,
        call.module,
    )


def list_tensors(arguments: tuple[object, ...]) -> list[TensorRecord]:
    """All tensors among an operator's arguments."""
    found: list[TensorRecord] = []
    for one in arguments:
        if isinstance(one, TensorRecord):
            found.append(one)
        elif isinstance(one, tuple):
            found += list_tensors(one)
    return found


def _of_one_image(shape: Shape, batch: int) -> Shape:
    return (max(1, shape[0] // batch), *shape[1:]) if shape else (1,)


def _read_convolution(call: OperatorCall, image: TensorRecord) -> Convolution | None:
    """Of two dimensions; those of one or three are operations without a rule."""
    weight = call.arguments[1]
    if len(weight.shape) != _PAIR + 2:
        return None
    stride, padding, dilation = ((values[0], values[-1]) for values in call.arguments[3:6])
    inside, outside = image.shape[1], call.outputs[0].shape[1]
    return Convolution(inside, outside, weight.shape[2:], stride, padding, dilation, call.arguments[8])


def count_side_operators(low: TracedStep, high: TracedStep) -> tuple[SideOperators, ...]:
    """What two steps run beside their layers, as a line over the batch size."""
    one, other = _count_calls(low), _count_calls(high)
    found = []
    for kind, stage in dict.fromkeys([*one, *other]):
        lines = []  # in every step, and for each image
        for start, end in zip(one.get((kind, stage), (0, 0)), other.get((kind, stage), (0, 0)), strict=True):
            # what gets less with more images is taken as constant
            per_image = max(0.0, (end - start) / (high.batch - low.batch))
            lines.append((max(0.0, start - low.batch * per_image), per_image))
        found.append(SideOperators(kind, stage, lines[0], lines[1]))
    return tuple(found)


def _count_calls(step: TracedStep) -> dict[Key, tuple[int, int]]:
    """Calls and elements by kind and stage."""
    found: dict[Key, tuple[int, int]] = {}
    for stage, kind, elements in _list_side_calls(step):
        calls, size = found.get((kind, stage), (0, 0))
        found[kind, stage] = (calls + 1, size + elements)
    return found


def _list_side_calls(step: TracedStep) -> Iterator[tuple[str, str, int]]:
    for call, operation in list_forward_calls(step):
        # of layers: batch norm counts its batches; others make room or take notes
        counts = call.name == "aten.add_" and len(call.outputs) == 1 and not call.outputs[0].shape
        if operation is not None or counts or call.name in _OF_LAYERS:
            continue
        given = list_tensors(call.arguments)
        same = bool(call.outputs) and call.outputs[0].block in (one.block for one in given)
        if call.name == kinds.NMS:
            yield call.stage, kinds.NMS, given[1].shape[0]
        elif (same and not call.name.endswith("_")) or call.name == _READS_ONE_NUMBER:
            yield call.stage, kinds.VIEW, 1
        else:
            yield call.stage, kinds.SMALL, _count_elements(given) + _count_elements(call.outputs)
    for call in step.log.calls:
        if call.phase == BACKWARD and call.name in _VIEWS_BACKWARD:
            yield call.stage, kinds.VIEW, 1
        elif call.phase == BACKWARD and call.name in _COPIES_BACKWARD:
            yield call.stage, kinds.SMALL, _count_elements(call.outputs)


def _count_elements(tensors: list[TensorRecord] | tuple[TensorRecord, ...]) -> int:
    return sum(prod(one.shape) for one in tensors)

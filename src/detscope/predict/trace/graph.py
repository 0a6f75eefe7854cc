"""From the operators of a traced forward pass to a layer graph: what latency models read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from detscope.predict.layers.graph import (
    ACTIVATION,
    ADD,
    AVERAGE_POOL,
    BATCH_NORM,
    CONCATENATE,
    CONVOLUTION,
    DROPOUT,
    LINEAR,
    MAX_POOL,
    RELU,
    Convolution,
    LayerGraph,
    Operation,
    Shape,
)
from detscope.predict.trace.step import TracedStep
from detscope.predict.trace.log import FORWARD, OperatorCall, Seen

_KINDS = {
    "convolution": CONVOLUTION,
    "addmm": LINEAR,
    "mm": LINEAR,
    "native_batch_norm": BATCH_NORM,
    "relu": RELU,
    "relu_": RELU,
    "hardtanh": RELU,
    "hardtanh_": RELU,
    "add": ADD,
    "add_": ADD,
    "cat": CONCATENATE,
    "max_pool2d_with_indices": MAX_POOL,
    "mean": AVERAGE_POOL,
    "avg_pool2d": AVERAGE_POOL,
    "_adaptive_avg_pool2d": AVERAGE_POOL,
    "native_dropout": DROPOUT,
} | dict.fromkeys(
    (
        "silu", "silu_", "gelu", "sigmoid", "sigmoid_", "hardswish", "hardswish_", "hardsigmoid",
        "hardsigmoid_", "tanh", "elu", "leaky_relu", "leaky_relu_", "mul", "mul_",
    ),
    ACTIVATION,
)  # fmt: skip
_PAIR = 2


def graph_of_step(name: str, step: TracedStep, family: str = "") -> LayerGraph:
    """The forward pass of a step; operators on nothing but constants and weights are left out."""
    operations = tuple(operation for _, operation in forward_calls(step) if operation is not None)
    return LayerGraph(name, operations, family)


def forward_calls(step: TracedStep) -> Iterator[tuple[OperatorCall, Operation | None]]:
    """Every operator of the forward pass, with its operation where it is one of the graph's.

    A parameter belongs to the operation that reads it first; heads that see several levels share theirs.
    """
    makers = dict.fromkeys(step.images, step.images[0])  # blocks of the data's way -> tensor of the graph
    trained = {number: step.log.blocks[number].size_bytes // 4 for number in step.trained}
    for call in step.log.calls:
        if call.phase == FORWARD:
            operation = _operation(call, makers, trained, step.batch)
            if operation is not None:
                for one in tensors_of(call.arguments):
                    trained.pop(one.block, None)
            yield call, operation


def _operation(
    call: OperatorCall, makers: dict[int, int], trained: Mapping[int, int], batch: int
) -> Operation | None:
    given = [one for one in tensors_of(call.arguments) if one.block in makers and one.dtype.is_floating_point]
    made = [one for one in call.outputs if one.dtype.is_floating_point and prod(one.shape)]
    if not given or not made:
        return None
    output = made[0]
    known = output.block in makers
    if known and output.block not in (one.block for one in given):
        return None
    in_place = call.name.endswith("_")
    if known and not in_place:  # a view: another shape of the same memory
        return None
    makers.setdefault(output.block, output.block)
    kind = call.name.partition(".")[2]
    kind = _KINDS.get(kind, kind) if call.name.startswith("aten.") else call.name
    first = given[0]
    return Operation(
        kind,
        tuple(makers[one.block] for one in given),
        tuple(_of_one_image(one.shape, batch) for one in given),
        makers[output.block],
        _of_one_image(output.shape, batch),
        tuple(trained[one.block] for one in tensors_of(call.arguments) if one.block in trained),
        _convolution(call, first) if kind == CONVOLUTION else None,
        call.stage,
        call.module,
    )


def tensors_of(arguments: tuple[object, ...]) -> list[Seen]:
    """All tensors among an operator's arguments."""
    found: list[Seen] = []
    for one in arguments:
        if isinstance(one, Seen):
            found.append(one)
        elif isinstance(one, tuple):
            found += tensors_of(one)
    return found


def _of_one_image(shape: Shape, batch: int) -> Shape:
    return (max(1, shape[0] // batch), *shape[1:]) if shape else (1,)


def _convolution(call: OperatorCall, image: Seen) -> Convolution | None:
    """Of two dimensions; those of one or three are operations without a rule."""
    weight, stride, padding, dilation = (call.arguments[place] for place in (1, 3, 4, 5))
    groups = call.arguments[8]
    if len(weight.shape) != _PAIR + 2:
        return None
    return Convolution(
        image.shape[1],
        call.outputs[0].shape[1],
        weight.shape[2:],
        _pair(stride),
        _pair(padding),
        _pair(dilation),
        groups,
    )


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    return (values[0], values[-1])

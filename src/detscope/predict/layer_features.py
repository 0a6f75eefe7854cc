"""Kernel classes of single layers, the terms of their roofline and the features of what it leaves over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log, prod

from detscope.predict.graph import ACTIVATION, ADD, DROPOUT, LINEAR, RELU, LayerGraph, Operation
from detscope.predict.layer_times import (
    CLAMP_IN_PLACE,
    FIRST,
    INFERENCE,
    PARAMETER,
    STEP,
    TRAINING,
    UPDATE,
)

VECTOR = 16  # channels that matrix kernels work on at once; fewer cost as much
FEW_IMAGES = 16  # below it, torch multiplies 1x1 convolutions image by image on one thread
OTHER = "other operations"  # of kinds that were never measured: by their memory traffic
ACCUMULATION = "gradient sums"  # of tensors that several layers read
_GIGA = 1e9
_IMAGE_DIMENSIONS = 4


@dataclass(frozen=True)
class LayerCall:
    """One layer of a step, at a batch size."""

    operation: Operation
    batch: int
    stage: str


def calls_of(graph: LayerGraph, batch: int, *, training: bool) -> Iterator[LayerCall]:
    """Everything that one step runs: layers, sums of gradients, the optimizer's updates."""
    operations = as_measured(graph)
    made = {operation.output for operation in operations if not operation.in_place}
    for operation in operations:
        from_images = not any(tensor in made for tensor in operation.inputs)
        yield LayerCall(operation, batch, INFERENCE if not training else FIRST if from_images else TRAINING)
    if training:
        yield from _gradient_sums(operations, batch)
        for operation in operations:
            for size in operation.parameters:
                yield LayerCall(_parameter(size, operation.stage), 1, UPDATE)


@lru_cache(maxsize=4096)
def as_measured(graph: LayerGraph) -> tuple[Operation, ...]:
    """A network's operations as a microbench has them: layers that are several operators count as one.

    Dropout draws a mask and multiplies; a clamp in place first copies its input; a loss has two parts.
    """
    found: list[Operation] = []
    masks: set[int] = set()
    copied: int | None = None  # the tensor that the operation before has copied
    for operation in graph.operations:
        before, copied = copied, None
        if operation.kind == "clone":
            copied = operation.inputs[0]
        elif operation.kind == "empty_like":
            masks.add(operation.output)
        elif operation.kind in ("_log_softmax", "log_softmax"):
            found.append(replace(operation, kind=STEP, output_shape=(1,)))
        elif operation.kind == RELU and operation.in_place and before in operation.inputs:
            found.append(replace(operation, kind=CLAMP_IN_PLACE))
        elif masks.isdisjoint(operation.inputs):
            if operation.kind != "nll_loss_forward":
                found.append(operation)
        elif operation.output not in masks:
            kept = operation.inputs[0]
            found.append(
                replace(operation, kind=DROPOUT, inputs=(kept,), input_shapes=operation.input_shapes[:1])
            )
    return tuple(found)


def _parameter(size: int, stage: str) -> Operation:
    return Operation(PARAMETER, (), (), 0, (size,), (size,), stage=stage)


def _gradient_sums(operations: Sequence[Operation], batch: int) -> Iterator[LayerCall]:
    """A tensor that is read n times gets n gradients; an in-place layer begins another tensor."""
    versions: Counter[int] = Counter()
    readers: Counter[tuple[int, int]] = Counter()
    sums: dict[tuple[int, int], Operation] = {}
    for operation in operations:
        for tensor, shape in zip(operation.inputs, operation.input_shapes, strict=True):
            key = (tensor, versions[tensor])
            readers[key] += 1
            sums.setdefault(key, Operation(ADD, (0, 1), (shape, shape), 0, shape, stage=operation.stage))
        if operation.in_place:
            versions[operation.output] += 1
    made = {operation.output for operation in operations}
    for (tensor, version), count in readers.items():
        if tensor in made:
            for _ in range(count - 1):
                yield LayerCall(sums[tensor, version], batch, INFERENCE)


def class_of(call: LayerCall, *, training: bool) -> str:
    """The kernel class; training and inference have models of their own."""
    operation, layer = call.operation, call.operation.convolution
    if training and call.stage == INFERENCE:
        return ACCUMULATION
    if layer is None:
        return "multiply" if operation.kind == ACTIVATION and len(operation.inputs) > 1 else operation.kind
    if call.stage == FIRST:
        return "first convolution"
    if layer.groups > 1:
        return "depthwise convolution" if layer.depthwise else "grouped convolution"
    if layer.stride != (1, 1) or layer.dilation != (1, 1):
        return "strided 1x1 convolution" if prod(layer.kernel) == 1 else "strided convolution"
    if prod(layer.kernel) == 1:
        return "1x1 convolution, few images" if call.batch < FEW_IMAGES else "1x1 convolution"
    return "3x3 convolution" if layer.kernel == (3, 3) else "large-window convolution"


def terms_of(call: LayerCall) -> tuple[float, ...]:
    """What the roofline adds up: multiplications, memory traffic and the call itself."""
    operation, batch = call.operation, call.batch
    into, out = batch * operation.input_elements / _GIGA, batch * operation.output_elements / _GIGA
    weights = sum(operation.parameters) / _GIGA
    if operation.convolution is not None:
        plain, rounded = _multiplications(call)
        return (rounded, plain, into, out, weights, 1.0)
    if operation.kind == LINEAR:
        return (batch * weights, into, out, weights, 1.0)
    fresh = 0.0 if operation.in_place else out
    return (into, out, fresh, weights, 1.0)


def traffic_terms(call: LayerCall) -> tuple[float, ...]:
    """The terms of operations that were never measured: what they read and write, and the call."""
    operation = call.operation
    return (call.batch * (operation.input_elements + operation.output_elements) / _GIGA, 1.0)


def _multiplications(call: LayerCall) -> tuple[float, float]:
    layer = call.operation.convolution
    assert layer is not None
    passes = {TRAINING: 3, FIRST: 2}.get(call.stage, 1)
    places = passes * call.batch * prod(call.operation.output_shape[2:]) * prod(layer.kernel) / _GIGA
    if layer.depthwise:
        return places * layer.out_channels, places * _up(layer.out_channels)
    inside, outside = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    deep = inside if call.stage == FIRST else _up(inside)  # kernels for images do not pad their channels
    return places * layer.groups * inside * outside, places * layer.groups * deep * _up(outside)


def features_of(call: LayerCall) -> tuple[float, ...]:
    """Logarithms of a layer's sizes: where it lies among those that were measured."""
    operation, layer, batch = call.operation, call.operation.convolution, call.batch
    if layer is not None:
        inside, outside = layer.in_channels // layer.groups, layer.out_channels // layer.groups
        return (
            log(inside),
            log(outside),
            log(layer.groups),
            0.5 * log(prod(operation.output_shape[2:])),
            log(batch),
            0.5 * log(prod(layer.kernel)),
            0.5 * log(prod(layer.stride)),
            2 * inside / _up(inside),
            2 * outside / _up(outside),
        )
    shape = operation.output_shape
    inner = prod(operation.input_shapes[0][2:]) if operation.input_shapes else 1
    return (
        log(max(1, batch * operation.input_elements)),
        log(max(1, batch * operation.output_elements)),
        log(shape[1] if len(shape) == _IMAGE_DIMENSIONS else 1),
        0.5 * log(max(1, inner)),
        log(batch),
        1.0 if operation.in_place else 0.0,
    )


def _up(value: int) -> int:
    return ceil(value / VECTOR) * VECTOR

"""Everything that one step runs, call by call: layers, sums of gradients, updates, and what is beside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from detscope.predict.layers.graph import ADD, CONVOLUTION, DROPOUT, LINEAR, RELU, Beside, LayerGraph, Operation
from detscope.predict.layers.times import (
    ADAM,
    CLAMP_IN_PLACE,
    FIRST,
    INFERENCE,
    PARAMETER,
    STEP,
    TRAINING,
    UPDATE,
)

GRADIENT_SUM = "gradient sum"  # no row of a microbench: an addition, measured as such
OPTIMIZERS = {"sgd": PARAMETER, "adam": ADAM}  # and the kind of their updates


@dataclass(frozen=True)
class LayerCall:
    """One layer of a step, at a batch size; `count` of them, where they are alike."""

    operation: Operation
    batch: int
    stage: str
    count: float = 1.0


def calls_of(
    graph: LayerGraph, batch: int, *, training: bool, update: str = PARAMETER
) -> Iterator[LayerCall]:
    """Everything that one step runs; `update` is the kind of the optimizer's work."""
    operations = as_measured(graph)
    learning = _learning(operations) if training else frozenset()
    for operation in operations:
        yield LayerCall(operation, batch, _stage(operation, learning) if training else INFERENCE)
    if training:
        yield from _gradient_sums(operations, learning, batch)
        for operation in operations:
            for size in operation.parameters:
                yield LayerCall(_parameter(size, operation.stage, update), 1, UPDATE)
    for one in graph.beside:
        yield from _beside(one, batch)


def _learning(operations: Sequence[Operation]) -> frozenset[int]:
    """Tensors that have a gradient: some trained parameter had a part in them."""
    found: set[int] = set()
    for operation in operations:
        if operation.parameters or not found.isdisjoint(operation.inputs):
            found.add(operation.output)
    return frozenset(found)


def _stage(operation: Operation, learning: frozenset[int]) -> str:
    """What prepares the images, and frozen layers before the first trained one, run forward alone."""
    if not learning.isdisjoint(operation.inputs):
        return TRAINING
    return FIRST if operation.parameters else INFERENCE


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
            found.append(operation)
        elif operation.kind == "empty_like":
            masks.add(operation.output)
        elif operation.kind in ("_log_softmax", "log_softmax"):
            found.append(replace(operation, kind=STEP, output_shape=(1,)))
        elif operation.kind == RELU and operation.in_place and before in operation.inputs:
            found[-1] = replace(operation, kind=CLAMP_IN_PLACE)
        elif masks.isdisjoint(operation.inputs):
            if operation.kind != "nll_loss_forward":
                found.append(operation)
        elif operation.output not in masks:
            kept = operation.inputs[0]
            found.append(
                replace(operation, kind=DROPOUT, inputs=(kept,), input_shapes=operation.input_shapes[:1])
            )
    return tuple(found)


def weight_elements(operation: Operation) -> int:
    """Elements of a layer's own tensors, also where they are frozen or another layer's as well."""
    layer = operation.convolution
    if operation.parameters:
        return sum(operation.parameters)
    if layer is not None:
        return layer.out_channels * (layer.in_channels // layer.groups) * prod(layer.kernel)
    if operation.kind == LINEAR:
        return operation.input_shapes[0][-1] * operation.output_shape[-1]
    return 0


def _parameter(size: int, stage: str, update: str) -> Operation:
    return Operation(update, (), (), 0, (size,), (size,), stage=stage)


def _beside(one: Beside, batch: int) -> Iterator[LayerCall]:
    calls, elements = (fixed + batch * per_image for fixed, per_image in (one.calls, one.elements))
    if calls:
        size = max(1, round(elements / calls))
        yield LayerCall(Operation(one.kind, (), (), 0, (size,), stage=one.stage), 1, INFERENCE, calls)


def _gradient_sums(
    operations: Sequence[Operation], learning: frozenset[int], batch: int
) -> Iterator[LayerCall]:
    """A tensor that is read n times gets n gradients; an in-place layer begins another tensor."""
    versions: Counter[int] = Counter()
    readers: Counter[tuple[int, int]] = Counter()
    sums: dict[tuple[int, int], Operation] = {}
    for operation in operations:
        for tensor, shape in zip(operation.inputs, operation.input_shapes, strict=True):
            key = (tensor, versions[tensor])
            readers[key] += 1
            if key not in sums:
                sums[key] = _sum(operation, shape)
        if operation.in_place:
            versions[operation.output] += 1
        shared = operation.kind in (CONVOLUTION, LINEAR) and not operation.parameters
        if shared and _stage(operation, learning) == TRAINING:
            yield LayerCall(_sum(operation, (1, weight_elements(operation))), 1, GRADIENT_SUM)
    for (tensor, version), count in readers.items():
        if tensor in learning:
            for _ in range(count - 1):
                yield LayerCall(sums[tensor, version], batch, GRADIENT_SUM)


def _sum(operation: Operation, shape: tuple[int, ...]) -> Operation:
    return Operation(ADD, (0, 1), (shape, shape), 0, shape, stage=operation.stage)

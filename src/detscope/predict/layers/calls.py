"""Everything that one step runs, call by call: layers, sums of gradients, updates, and what is beside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log, prod

from detscope.predict.layers import kinds
from detscope.predict.layers.graph import LayerGraph, Operation
from detscope.predict.layers.times import FIRST, INFERENCE, TRAINING, UPDATE

GRADIENT_SUM = "gradient sum"  # no row of a microbench: an addition, measured as such
OPTIMIZERS = {"sgd": kinds.PARAMETER, "adam": kinds.ADAM}  # and the kind of their updates
VECTOR = 16  # channels that matrix kernels work on at once; fewer cost as much
FEW_IMAGES = 16  # below it, torch multiplies 1x1 convolutions image by image on one thread
OTHER = "other operations"  # of kinds that were never measured: by their memory traffic
ACCUMULATION = "gradient sums"  # of tensors that several layers read
FORWARD_ALONE = ", forward alone"  # in a training step, but nobody asks for a gradient
_GIGA = 1e9
_IMAGE_DIMENSIONS = 4
_ARITHMETIC = (
    "abs", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd", "copy_", "div", "div_", "exp",
    "floor", "full_like", "log", "log2", "masked_fill", "masked_fill_", "maximum", "minimum", "neg",
    "new_full", "new_zeros", "ones_like", "pow", "reciprocal", "round", "rsqrt", "rsub", "sqrt", "sub",
    "sub_", "where", "zeros_like",
)  # fmt: skip
# torch's operators -> the kind that was measured for all of them
SHARED_KINDS = {
    **dict.fromkeys(_ARITHMETIC, kinds.ARITHMETIC),
    **dict.fromkeys(("amax", "amin", "linalg_vector_norm", "max", "min", "prod", "sum"), kinds.REDUCTION),
    **dict.fromkeys(
        ("gather", "index_put_", "index_put", "index_select", "scatter", "scatter_"), kinds.INDEX
    ),
    **dict.fromkeys(("sort", "topk"), kinds.SORTING),
    **dict.fromkeys(
        ("binary_cross_entropy_with_logits", "smooth_l1_loss", "mse_loss", "huber_loss"), kinds.LOSS
    ),
    "stack": kinds.CONCATENATE,
}


@dataclass(frozen=True)
class LayerCall:
    """One layer of a step, at a batch size; `count` of them, where they are alike."""

    operation: Operation
    batch: int
    stage: str
    count: float = 1.0


def list_calls(
    graph: LayerGraph, batch: int, *, training: bool, update: str = kinds.PARAMETER
) -> Iterator[LayerCall]:
    """Everything that one step runs; `update` is the kind of the optimizer's work."""
    operations = group_as_measured(graph)
    learning: set[int] = set()  # tensors that have a gradient: some trained parameter had a part in them
    for operation in operations if training else ():
        if operation.parameters or not learning.isdisjoint(operation.inputs):
            learning.add(operation.output)
    for operation in operations:
        yield LayerCall(operation, batch, _stage_of(operation, learning) if training else INFERENCE)
    if training:
        yield from _gradient_sums(operations, learning, batch)
        for operation in operations:
            for size in operation.parameters:
                made = Operation(update, (), (), 0, (size,), (size,), stage=operation.stage)
                yield LayerCall(made, 1, UPDATE)
    for one in graph.beside:
        calls, elements = (fixed + batch * per_image for fixed, per_image in (one.calls, one.elements))
        if calls:
            shape = (max(1, round(elements / calls)),)
            yield LayerCall(Operation(one.kind, (), (), 0, shape, stage=one.stage), 1, INFERENCE, calls)


def _stage_of(operation: Operation, learning: set[int]) -> str:
    """What prepares the images, and frozen layers before the first trained one, run forward alone."""
    if not learning.isdisjoint(operation.inputs):
        return TRAINING
    return FIRST if operation.parameters else INFERENCE


@lru_cache(maxsize=4096)
def group_as_measured(graph: LayerGraph) -> tuple[Operation, ...]:
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
            found.append(replace(operation, kind=kinds.STEP, output_shape=(1,)))
        elif operation.kind == kinds.RELU and operation.in_place and before in operation.inputs:
            found[-1] = replace(operation, kind=kinds.CLAMP_IN_PLACE)
        elif masks.isdisjoint(operation.inputs):
            if operation.kind != "nll_loss_forward":
                found.append(operation)
        elif operation.output not in masks:
            kept = operation.inputs[0]
            found.append(
                replace(
                    operation, kind=kinds.DROPOUT, inputs=(kept,), input_shapes=operation.input_shapes[:1]
                )
            )
    return tuple(found)


def count_weights(operation: Operation) -> int:
    """Elements of a layer's own tensors, also where they are frozen or another layer's as well."""
    layer = operation.convolution
    if operation.parameters:
        return sum(operation.parameters)
    if layer is not None:
        return layer.out_channels * (layer.in_channels // layer.groups) * prod(layer.kernel)
    if operation.kind == kinds.LINEAR:
        return operation.input_shapes[0][-1] * operation.output_shape[-1]
    return 0


def _gradient_sums(operations: Sequence[Operation], learning: set[int], batch: int) -> Iterator[LayerCall]:
    """A tensor that is read n times gets n gradients; an in-place layer begins another tensor."""
    versions: Counter[int] = Counter()
    readers: Counter[tuple[int, int]] = Counter()
    sums: dict[tuple[int, int], Operation] = {}
    for operation in operations:
        for tensor, shape in zip(operation.inputs, operation.input_shapes, strict=True):
            key = (tensor, versions[tensor])
            readers[key] += 1
            if key not in sums:
                sums[key] = _make_sum(operation, shape)
        if operation.in_place:
            versions[operation.output] += 1
        shared = operation.kind in (kinds.CONVOLUTION, kinds.LINEAR) and not operation.parameters
        if shared and _stage_of(operation, learning) == TRAINING:
            yield LayerCall(_make_sum(operation, (1, count_weights(operation))), 1, GRADIENT_SUM)
    for (tensor, version), count in readers.items():
        if tensor in learning:
            for _ in range(count - 1):
                yield LayerCall(sums[tensor, version], batch, GRADIENT_SUM)


def _make_sum(operation: Operation, shape: tuple[int, ...]) -> Operation:
    return Operation(kinds.ADD, (0, 1), (shape, shape), 0, shape, stage=operation.stage)


def classify_call(call: LayerCall, *, training: bool) -> str:
    """The kernel class; training and inference have models of their own."""
    if call.stage == GRADIENT_SUM:
        return ACCUMULATION
    alone = training and call.stage == INFERENCE and call.operation.kind not in kinds.BESIDE
    return _kernel_class(call) + (FORWARD_ALONE if alone else "")


def list_stand_ins(name: str) -> tuple[str, ...]:
    """A class, and those that answer where it was never measured: the same layer in the other way."""
    plain = name.removesuffix(FORWARD_ALONE)
    return (name, plain, plain + FORWARD_ALONE)


def _kernel_class(call: LayerCall) -> str:
    operation, layer = call.operation, call.operation.convolution
    if layer is None:
        if operation.kind == kinds.ACTIVATION and len(operation.inputs) > 1:
            return "multiply"
        return SHARED_KINDS.get(operation.kind, operation.kind)
    if call.stage == FIRST:
        return "first convolution"
    if layer.groups > 1:
        return "depthwise convolution" if layer.is_depthwise else "grouped convolution"
    if layer.stride != (1, 1) or layer.dilation != (1, 1):
        return "strided 1x1 convolution" if prod(layer.kernel) == 1 else "strided convolution"
    if prod(layer.kernel) == 1:
        return "1x1 convolution, few images" if call.batch < FEW_IMAGES else "1x1 convolution"
    return "3x3 convolution" if layer.kernel == (3, 3) else "large-window convolution"


def roofline_terms(call: LayerCall) -> tuple[float, ...]:
    """What the roofline adds up: multiplications, memory traffic and the call itself."""
    operation, batch = call.operation, call.batch
    into, out = batch * operation.input_elements / _GIGA, batch * operation.output_elements / _GIGA
    weights = count_weights(operation) / _GIGA
    layer = operation.convolution
    if layer is not None:
        passes = {TRAINING: 3, FIRST: 2}.get(call.stage, 1)
        places = passes * batch * prod(operation.output_shape[2:]) * prod(layer.kernel) / _GIGA
        inside, outside = layer.in_channels // layer.groups, layer.out_channels // layer.groups
        # kernels for images do not pad their channels
        deep = inside if call.stage == FIRST else _round_up(inside)
        plain = places * layer.groups * inside * outside
        rounded = places * layer.groups * deep * _round_up(outside)
        if layer.is_depthwise:
            plain, rounded = places * layer.out_channels, places * _round_up(layer.out_channels)
        return (rounded, plain, into, out, weights, 1.0)
    if operation.kind == kinds.LINEAR:
        return (batch * weights, into, out, weights, 1.0)
    if operation.kind == kinds.NMS:  # every box is compared with every other
        return (out, out * operation.output_elements, 1.0)
    fresh = 0.0 if operation.in_place else out
    return (into, out, fresh, weights, 1.0)


def count_widths(name: str) -> tuple[int, int]:
    """How many terms and features layers of a class have, by its name."""
    plain = name.removesuffix(FORWARD_ALONE)
    if plain.endswith(("convolution", "convolution, few images")):
        return 6, 9
    return (3, 6) if plain == kinds.NMS else (5, 6)


def traffic_terms(call: LayerCall) -> tuple[float, ...]:
    """Terms where features say nothing (never measured, or many at once): what is moved, and the call."""
    operation = call.operation
    return (call.batch * (operation.input_elements + operation.output_elements) / _GIGA, 1.0)


def call_features(call: LayerCall) -> tuple[float, ...]:
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
            2 * inside / _round_up(inside),
            2 * outside / _round_up(outside),
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


def _round_up(value: int) -> int:
    return ceil(value / VECTOR) * VECTOR

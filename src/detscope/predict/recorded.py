"""Lists of layers and tables of measurements as the older toolflow's device runs left them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detscope.errors import InputError
from detscope.predict.graph import (
    ADD,
    AVERAGE_POOL,
    BATCH_NORM,
    CONCATENATE,
    CONVOLUTION,
    LINEAR,
    MAX_POOL,
    RELU,
    Convolution,
    LayerGraph,
    Operation,
    Shape,
)

_KINDS = {
    "conv": CONVOLUTION,
    "bn": BATCH_NORM,
    "relu_": RELU,
    "relu6_": RELU,
    "add": ADD,
    "cat": CONCATENATE,
    "avgpool": AVERAGE_POOL,
    "maxpool": MAX_POOL,
    "linear": LINEAR,
}


def read_layers(path: Path) -> dict[tuple[str, int], LayerGraph]:
    """Graphs by (network, pruning level) out of a `layers.json`."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        return {_key(name): graph_of(name, rows) for name, rows in listed.items()}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "give a list of layers") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"{path} is not a list of layers ({error!r:.100})", "see docs/predict.md") from error


def _key(name: str) -> tuple[str, int]:
    network, _, level = name.rpartition("_")
    return network, int(level)


def graph_of(name: str, rows: Sequence[Sequence[Any]]) -> LayerGraph:
    """One network; operands that the list leaves out (it names one input) are put back."""
    operations: list[Operation] = []
    for kind, source, source_shape, output, output_shape, attributes in rows:
        operation = _operation(
            str(kind), source, tuple(source_shape), output, tuple(output_shape), attributes
        )
        if operation.kind == ADD:
            operation = _with_other_operand(operation, operations)
        elif operation.kind == CONCATENATE:
            operation = _with_all_parts(operation, operations, int(attributes["n"]))
        operations.append(operation)
    return LayerGraph(name, tuple(operations), family=name.rpartition("_")[0])


def _operation(
    kind: str, source: int, source_shape: Shape, output: int, output_shape: Shape, more: Mapping[str, int]
) -> Operation:
    convolution = None
    parameters: tuple[int, ...] = ()
    if kind == "conv":
        convolution = Convolution(
            more["ic"],
            more["oc"],
            (more["k"], more["k"]),
            (more["stride"], more["stride"]),
            (more["pad"], more["pad"]),
            groups=more["groups"],
        )
        weight = more["oc"] * (more["ic"] // more["groups"]) * more["k"] ** 2
        parameters = (weight, more["params"] - weight) if more["params"] > weight else (weight,)
    elif kind == "linear":
        parameters = (more["ic"] * more["oc"], more["params"] - more["ic"] * more["oc"])
    elif kind == "bn":
        parameters = (more["params"] // 2, more["params"] // 2)
    return Operation(
        _KINDS.get(kind, kind), (source,), (source_shape,), output, output_shape, parameters, convolution
    )


def _with_other_operand(operation: Operation, before: list[Operation]) -> Operation:
    """The second operand of an addition: a branch nobody has used yet, else what the block began with."""
    used = {tensor for earlier in before for tensor in earlier.inputs if not earlier.in_place}
    shape = operation.output_shape
    loose = [one.output for one in before if one.output not in used and one.output != operation.inputs[0]]
    if loose:
        return _extended(operation, [(loose[-1], shape)])
    maker = {earlier.output: earlier for earlier in before if not earlier.in_place}
    tensor, dense_convolutions = operation.inputs[0], 0
    while tensor in maker:
        step = maker[tensor]
        dense_convolutions += step.convolution is not None and step.convolution.groups == 1
        tensor = step.inputs[0]
        # a block has two dense convolutions; what lies before them is what it began with
        if dense_convolutions >= 2 and tensor in maker and maker[tensor].output_shape == shape:
            return _extended(operation, [(tensor, shape)])
    raise KeyError(f"no second operand for the addition that makes tensor {operation.output}")


def _with_all_parts(operation: Operation, before: list[Operation], count: int) -> Operation:
    """The parts of a concatenation: the tensors made since the named one that nobody has used."""
    used = {tensor for earlier in before for tensor in earlier.inputs if not earlier.in_place}
    loose = {one.output: one.output_shape for one in before if one.output not in used}
    parts = [(tensor, shape) for tensor, shape in loose.items() if tensor != operation.inputs[0]]
    if len(parts) < count - 1:
        raise KeyError(f"the parts of the concatenation that makes tensor {operation.output}")
    return _extended(operation, parts[-(count - 1) :])


def _extended(operation: Operation, more: list[tuple[int, Shape]]) -> Operation:
    return replace(
        operation,
        inputs=(*operation.inputs, *(tensor for tensor, _ in more)),
        input_shapes=(*operation.input_shapes, *(shape for _, shape in more)),
    )

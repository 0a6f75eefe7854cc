"""Lists of layers on disk: our own form, which keeps all that a graph holds, and that of the older toolflow.

Version history of our own form:
1 - networks as {network, level, name, family, details, operations}; an operation is a row of `columns`.
    Since detectors: `beside` where operators beside the layers were traced; older readers pass over it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from detscope.errors import InputError
from detscope.limits import require_within
from detscope.predict.layers import kinds
from detscope.predict.layers.graph import Convolution, LayerGraph, Operation, Shape, SideOperators
from detscope.runs.atomic import write_text

FORMAT = "detscope layers"
VERSION = 1
_COLUMNS = [
    *("kind", "inputs", "input_shapes", "output", "output_shape"),
    *("parameters", "convolution", "stage", "module"),
]  # the fields of an `Operation`, in their order
_KINDS = {
    "conv": kinds.CONVOLUTION,
    "bn": kinds.BATCH_NORM,
    "relu_": kinds.RELU,
    "relu6_": kinds.RELU,
    "add": kinds.ADD,
    "cat": kinds.CONCATENATE,
    "avgpool": kinds.AVERAGE_POOL,
    "maxpool": kinds.MAX_POOL,
    "linear": kinds.LINEAR,
}


@dataclass(frozen=True)
class ListedNetwork:
    """A network of a list of layers; several may share network and level (other images, another seed)."""

    network: str
    level: int
    graph: LayerGraph


def read_layers(path: Path) -> dict[tuple[str, int], LayerGraph]:
    """Graphs by (network, pruning level) out of a `layers.json` of either form."""
    return {(one.network, one.level): one.graph for one in read_networks(path)}


def read_networks(path: Path) -> list[ListedNetwork]:
    """Every network of a `layers.json` of either form."""
    try:
        require_within("layer_graph_bytes", path.stat().st_size, f"{path}")
        listed = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(listed, dict) and listed.get("format") == FORMAT:
            if listed["version"] != VERSION or listed["columns"] != _COLUMNS:
                raise InputError(
                    f"{path} is a list of layers of version {listed['version']!s:.20},"
                    f" this detscope reads {VERSION}",
                    "make it again, or update detscope",
                )
            return [
                ListedNetwork(str(one["network"]), int(one["level"]), _graph_from_plain(one))
                for one in listed["networks"]
            ]
        return [
            ListedNetwork(name.rpartition("_")[0], int(name.rpartition("_")[2]), read_older_rows(name, rows))
            for name, rows in listed.items()
        ]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "give a list of layers") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is not a list of layers ({error!r:.100})", "see docs/predict.md") from error


def write_layers(path: Path, graphs: Mapping[tuple[str, int], LayerGraph]) -> None:
    """Write graphs by (network, pruning level), with everything that an operation holds."""
    write_networks(path, [ListedNetwork(network, level, graph) for (network, level), graph in graphs.items()])


def write_networks(path: Path, listed: Iterable[ListedNetwork]) -> None:
    """Write networks, one operation a line, whole or not at all."""
    networks = []
    for one in listed:
        graph = one.graph
        head: dict[str, Any] = {"network": one.network, "level": one.level}
        head |= {"name": graph.name, "family": graph.family, "details": dict(graph.details)}
        if graph.beside:
            head["beside"] = [astuple(part) for part in graph.beside]
        rows = ",\n".join(json.dumps(astuple(row), separators=(",", ":")) for row in graph.operations)
        networks.append(f'{json.dumps(head)[:-1]}, "operations": [\n{rows}]}}')
    whole = json.dumps({"format": FORMAT, "version": VERSION, "columns": _COLUMNS})
    write_text(path, f'{whole[:-1]}, "networks": [\n' + ",\n".join(networks) + "\n]}\n")


def _graph_from_plain(one: Mapping[str, Any]) -> LayerGraph:
    """Rows become objects of their columns, which msgspec checks and converts."""
    operations = [_with_names(row, Operation) for row in one["operations"]]
    for row in operations:
        if row["convolution"] is not None:
            row["convolution"] = _with_names(row["convolution"], Convolution)
    beside = [_with_names(row, SideOperators) for row in one.get("beside", ())]
    return msgspec.convert({**one, "operations": operations, "beside": beside}, LayerGraph, strict=False)


def _with_names(values: Sequence[Any], kind: type[Operation | Convolution | SideOperators]) -> dict[str, Any]:
    return dict(zip((one.name for one in fields(kind)), values, strict=True))


def read_older_rows(name: str, rows: Sequence[Sequence[Any]]) -> LayerGraph:
    """One network; operands that the list leaves out (it names one input) are put back."""
    operations: list[Operation] = []
    for kind, source, source_shape, output, output_shape, more in rows:
        convolution = None
        parameters: tuple[int, ...] = ()
        if kind == "conv":
            window, stride, padding = ((more[key], more[key]) for key in ("k", "stride", "pad"))
            convolution = Convolution(more["ic"], more["oc"], window, stride, padding, groups=more["groups"])
            weight = more["oc"] * (more["ic"] // more["groups"]) * more["k"] ** 2
            parameters = (weight, more["params"] - weight) if more["params"] > weight else (weight,)
        elif kind == "linear":
            parameters = (more["ic"] * more["oc"], more["params"] - more["ic"] * more["oc"])
        elif kind == "bn":
            parameters = (more["params"] // 2, more["params"] // 2)
        shapes = (tuple(source_shape),), output, tuple(output_shape)
        operation = Operation(_KINDS.get(str(kind), str(kind)), (source,), *shapes, parameters, convolution)
        if operation.kind == kinds.ADD:
            operation = _with_other_operand(operation, operations)
        elif operation.kind == kinds.CONCATENATE:
            operation = _with_all_parts(operation, operations, int(more["n"]))
        operations.append(operation)
    return LayerGraph(name, tuple(operations), family=name.rpartition("_")[0])


def _with_other_operand(operation: Operation, before: list[Operation]) -> Operation:
    """The second operand of an addition: a branch nobody has used yet, else what the block began with."""
    used = {tensor for earlier in before for tensor in earlier.inputs if not earlier.in_place}
    shape = operation.output_shape
    loose = [one.output for one in before if one.output not in used and one.output != operation.inputs[0]]
    if loose:
        return _add_operands(operation, [(loose[-1], shape)])
    maker = {earlier.output: earlier for earlier in before if not earlier.in_place}
    tensor, dense_convolutions = operation.inputs[0], 0
    while tensor in maker:
        step = maker[tensor]
        dense_convolutions += step.convolution is not None and step.convolution.groups == 1
        tensor = step.inputs[0]
        # a block has two dense convolutions; what lies before them is what it began with
        if dense_convolutions >= 2 and tensor in maker and maker[tensor].output_shape == shape:
            return _add_operands(operation, [(tensor, shape)])
    raise KeyError(f"no second operand for the addition that makes tensor {operation.output}")


def _with_all_parts(operation: Operation, before: list[Operation], count: int) -> Operation:
    """The parts of a concatenation: the tensors made since the named one that nobody has used."""
    used = {tensor for earlier in before for tensor in earlier.inputs if not earlier.in_place}
    loose = {one.output: one.output_shape for one in before if one.output not in used}
    parts = [(tensor, shape) for tensor, shape in loose.items() if tensor != operation.inputs[0]]
    if len(parts) < count - 1:
        raise KeyError(f"the parts of the concatenation that makes tensor {operation.output}")
    return _add_operands(operation, parts[-(count - 1) :])


def _add_operands(operation: Operation, more: list[tuple[int, Shape]]) -> Operation:
    return replace(
        operation,
        inputs=(*operation.inputs, *(tensor for tensor, _ in more)),
        input_shapes=(*operation.input_shapes, *(shape for _, shape in more)),
    )

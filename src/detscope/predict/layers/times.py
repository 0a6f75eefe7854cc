"""Times of single layers: what a microbench measures and what a layer-wise model is fitted on.

Kept as a CSV that a person can read: one row per layer, batch and stage.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detscope.errors import InputError
from detscope.limits import read_csv_rows
from detscope.predict.layers.graph import Convolution, Operation, Shape
from detscope.runs.atomic import write_text

TRAINING = "training"  # forward and backward, the gradient of its input included
FIRST = "training, first layer"  # as a network's first layer: nobody asks for its input's gradient
INFERENCE = "inference"  # forward alone, no gradients
UPDATE = "update"  # the optimizer's work on one parameter tensor
LAYER_STAGES = (TRAINING, FIRST, INFERENCE, UPDATE)

COLUMNS = (
    "kind", "stage", "batch", "input_shapes", "output_shape", "in_place", "parameters", "kernel", "stride",
    "padding", "dilation", "groups", "ms", "drift", "host_ms",
)  # fmt: skip
_OLDER_COLUMNS = COLUMNS[:-1]
_HINT = "make it again: detscope fit --microbench"


@dataclass(frozen=True)
class LayerTime:
    """One layer at a batch size; `drift` is how slow the machine was then, against its usual speed.

    `host_ms`: of a device's host, to queue the layer; None: the layer ran on a processor.
    """

    operation: Operation
    batch: int
    stage: str
    ms: float
    drift: float = 1.0
    host_ms: float | None = None

    @property
    def steady_ms(self) -> float:
        """What it would have taken at the machine's usual speed."""
        return self.ms / self.drift


def write_layer_times(path: Path, rows: Sequence[LayerTime]) -> None:
    """Write rows whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_to_cells(row) for row in rows)
    write_text(path, text.getvalue())


def read_layer_times(path: Path) -> list[LayerTime]:
    """Read rows back; InputError with one line for anything else."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error!s:.100}", _HINT) from error
    if not lines or tuple(lines[0].split(",")) not in (COLUMNS, _OLDER_COLUMNS):
        raise InputError(f"{path} holds no times of layers", _HINT)
    found = []
    for number, cells in enumerate(read_csv_rows(path, lines), 2):
        try:
            found.append(_from_cells(cells))
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{path}, line {number}: {error!s:.80}", _HINT) from error
    if not found:
        raise InputError(f"{path} has no rows", _HINT)
    return found


def sum_layer_times(rows: Sequence[LayerTime]) -> str:
    """A short sum of what was measured."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(_to_cells(row)).encode())
    return digest.hexdigest()[:16]


def _to_cells(row: LayerTime) -> list[str]:
    one, layer = row.operation, row.operation.convolution
    window = ("", "", "", "", "")
    if layer is not None:
        pairs = (layer.kernel, layer.stride, layer.padding, layer.dilation)
        window = (*("x".join(map(str, pair)) for pair in pairs), str(layer.groups))  # type: ignore[assignment]
    return [
        one.kind,
        row.stage,
        str(row.batch),
        " ".join(map(_shape_text, one.input_shapes)),
        _shape_text(one.output_shape),
        "yes" if one.in_place else "no",
        " ".join(map(str, one.parameters)),
        *window,
        f"{row.ms:.6g}",
        f"{row.drift:.4f}",
        "" if row.host_ms is None else f"{row.host_ms:.6g}",
    ]


def _from_cells(cells: Mapping[str, str]) -> LayerTime:
    shapes = tuple(_parse_numbers(text) for text in cells["input_shapes"].split())
    output = _parse_numbers(cells["output_shape"])
    if cells["stage"] not in LAYER_STAGES:
        raise ValueError(f"no stage {cells['stage']!r:.30}")
    layer = None
    if cells["kernel"]:
        pairs: dict[str, Any] = {
            name: _parse_numbers(cells[name]) for name in ("kernel", "stride", "padding", "dilation")
        }
        if any(len(pair) != 2 for pair in pairs.values()):
            raise ValueError("a window that is no pair")
        layer = Convolution(shapes[0][1], output[1], **pairs, groups=int(cells["groups"]))
    operation = Operation(
        cells["kind"],
        tuple(range(len(shapes))),
        shapes,
        0 if cells["in_place"] == "yes" else len(shapes),
        output,
        tuple(int(size) for size in cells["parameters"].split()),
        layer,
    )
    ms, drift, batch = float(cells["ms"]), float(cells["drift"]), int(cells["batch"])
    if not (0 < ms < float("inf") and 0 < drift < float("inf") and batch > 0):
        raise ValueError("a time, drift or batch that is not above zero")
    host_ms = float(cells["host_ms"]) if cells.get("host_ms") else None
    if host_ms is not None and not 0 <= host_ms < float("inf"):
        raise ValueError("a host's time that is below zero")
    return LayerTime(operation, batch, cells["stage"], ms, drift, host_ms)


def _shape_text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _parse_numbers(text: str) -> Shape:
    return tuple(int(part) for part in text.split("x"))

"""Listings of Nsight Compute, tables of measured steps and lists of layers: columns of text, and back."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import polars as pl

# whose computer, when, and advice in whole sentences: no figure depends on it
_NOT_KEPT = ("Process Name", "Host Name", "Kernel Time", "Rule Description")
_FIRST_COLUMNS = ('"ID"', "Metric Name,")  # other tables begin at once
_LAYER = ("network", "operation", "input", "input_shape", "output", "output_shape", "attributes")
_PREFIX = "log lines before the header"


def reduce_listing(path: Path) -> pl.DataFrame:
    """The rows below the header as texts; of lines before it, their number."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    begin = next((i for i, line in enumerate(lines) if line.startswith(_FIRST_COLUMNS)), 0)
    header, *rows = csv.reader(io.StringIO("".join(lines[begin:])))
    width = len(header)
    columns = list(zip(*[row + [""] * (width - len(row)) for row in rows], strict=True))
    series = [
        pl.Series(name, ["-"] * len(rows) if name in _NOT_KEPT else values, dtype=pl.Categorical)
        for name, values in zip(header, columns, strict=True)
    ]
    return pl.DataFrame(series).with_columns(pl.lit(begin, pl.Int64).alias(_PREFIX))


def restore_listing(frame: pl.DataFrame, path: Path) -> None:
    """Write header and rows again, below as many lines of somebody's program."""
    log_lines = frame[_PREFIX][0]
    text = io.StringIO()
    text.write("==PROF== a line that is no part of the listing\n" * log_lines)
    rows = frame.drop(_PREFIX)
    quoting = csv.QUOTE_ALL if rows.columns[0] == "ID" else csv.QUOTE_MINIMAL
    writer = csv.writer(text, quoting=quoting, lineterminator="\n")
    writer.writerow(rows.columns)
    writer.writerows(rows.iter_rows())
    path.write_text(text.getvalue(), encoding="utf-8")


def reduce_layers(path: Path) -> pl.DataFrame:
    """Layers of all networks below each other; shapes and settings as JSON."""
    listed = json.loads(path.read_text(encoding="utf-8"))
    rows = [[name, *map(json.dumps, row)] for name, rows in listed.items() for row in rows]
    schema = dict.fromkeys(_LAYER, pl.Categorical)
    return pl.DataFrame(rows, schema=schema, orient="row")


def restore_layers(frame: pl.DataFrame, path: Path) -> None:
    """Write the list of every network again."""
    listed: dict[str, list[list[object]]] = {}
    for network, *row in frame.iter_rows():
        listed.setdefault(network, []).append([json.loads(cell) for cell in row])
    path.write_text(json.dumps(listed), encoding="utf-8")

"""What NVIDIA's tools measured, batch size by batch size. Shows what `analyze` found and computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from detscope.report.figures import cell, count, mapping, number, percent, plain

_PIPES = {"fma": "fma", "fp16": "fp16", "tensor": "tensor", "xu": "sfu (xu)"}
_THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"


def render_nsight(kind: str, rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the table over batch sizes, its definitions, and where the runs are."""
    console.print(_systems_table(rows) if kind == "systems" else _compute_table(rows))
    for words in _definitions(kind, rows):
        console.print(plain(words))
    for row in rows:
        if row.get("run"):
            console.print(f"batch {row['batch_size']}: detscope show {plain(row['run'])}", soft_wrap=True)
        else:
            console.print(f"batch {row['batch_size']}: failed: {plain(row.get('why'))}", soft_wrap=True)


def _systems_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="GPU compute utilisation (Nsight Systems)")
    for name in ("batch", "steps", "kernels", "busy ms", "of ms", "kernels + copies"):
        table.add_column(name, justify="right")
    for row in rows:
        use = mapping(row, "utilisation")
        table.add_row(
            cell(row["batch_size"]),
            count(row.get("steps")),
            percent(use.get("kernels")),
            _ms(use.get("kernels_ns")),
            _ms(use.get("window_ns")),
            percent(use.get("with_copies")),
        )
    return table


def _compute_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="core utilisation, share of kernel time (Nsight Compute)")
    for name in ("batch", "kernels", "cycles", *_PIPES.values(), "SM throughput", "coverage"):
        table.add_column(name, justify="right")
    for row in rows:
        pipes, counters = mapping(row, "pipes"), mapping(row, "counters")
        found = [mapping(pipes, pipe) for pipe in _PIPES]
        covered = [figure["coverage"] for figure in found if figure.get("coverage") is not None]
        table.add_row(
            cell(row["batch_size"]),
            count(row.get("kernels")),
            count(row.get("cycles")),
            *(percent(figure.get("value")) for figure in found),
            percent(mapping(counters, _THROUGHPUT).get("value")),
            percent(min(covered, default=None)),
        )
    return table


def _definitions(kind: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    for row in rows:
        if kind == "systems" and (words := mapping(row, "utilisation").get("window")):
            return [f"window: {words}"]
        if kind == "compute" and row.get("definition"):
            return [f"per pipe: {row['definition']}"]
    return []


def _ms(duration_ns: Any) -> str:
    return number(duration_ns / 1e6) if isinstance(duration_ns, int | float) else number(duration_ns)

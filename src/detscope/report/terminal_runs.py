"""A list of runs in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from detscope.report.figures import plain

_COLUMNS = ("name", "verb", "model", "device", "batch_size", "precision", "status")


def render_runs(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the runs of a folder, one line each."""
    if not rows:
        console.print("no runs")
        return
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*("-" if row[name] is None else escape(plain(row[name])) for name in _COLUMNS))
    console.print(table)
    console.print(f"{len(rows)} runs")
    for row in rows:
        if row["status"] == "damaged":
            console.print(f"damaged: {escape(plain(row['reason']))}", style="yellow", soft_wrap=True)

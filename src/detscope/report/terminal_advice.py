"""What would make a run faster, in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from detscope.report.figures import cell, is_number, rows
from detscope.report.terminal_tables import figure_table

SHOWN = 3


def render_advice(summary: Mapping[str, Any], console: Console) -> None:
    """The largest findings; nothing where there are none."""
    found = rows(summary, "advice")[:SHOWN]
    if not found:
        return
    tuned = "; `detscope tune` tries them" if any(row.get("settings") for row in found) else ""
    table = figure_table(f"What would make it faster (estimates from this run{tuned})", [], ["saves"])
    table.add_column("change", overflow="fold")
    table.add_column("why", overflow="fold")
    for row in found:
        share = row.get("gain_share")
        gain = f"{share * 100:.0f} %" if is_number(share) else "n/a"
        table.add_row(gain, cell(row.get("title"), "cyan"), cell(row.get("evidence")))
    console.print()
    console.print(table)
    console.print()

"""What trying changes told, in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from detscope.report.figures import is_number, plain


def render_tuning(result: Mapping[str, Any], console: Console) -> None:
    """Estimate against measurement, then what to do."""
    if result["tried"]:
        table = Table(box=None, pad_edge=False)
        for name in ("change", "estimated", "measured", "95 % interval", "verdict"):
            table.add_column(
                name, overflow="fold", justify="right" if name in ("estimated", "measured") else "left"
            )
        for row in result["tried"]:
            table.add_row(
                escape(plain(row["title"])),
                _share(row.get("estimated_gain")),
                _share(row.get("measured_gain")),
                _ends(row.get("measured_ci95")),
                escape(plain(row["verdict"])),
            )
        console.print("gain: share of the time per image that a change saves")
        console.print(table)
    console.print(f"\n[bold]{escape(plain(result['verdict']))}[/bold]")
    if result.get("config"):
        console.print(f"use it: detscope train --config {escape(plain(result['config']))}")


def _share(value: Any) -> str:
    return f"{value:+.1%}" if is_number(value) else "n/a"


def _ends(value: Any) -> str:
    return f"{value[0]:+.1%} to {value[1]:+.1%}" if isinstance(value, list) and len(value) == 2 else ""

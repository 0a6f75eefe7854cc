"""A comparison in the terminal, and as a Markdown table for a pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from detscope.report.figures import plain
from detscope.report.render.markdown import name_cell, sentence, table

_STYLES = {
    "slower": "red",
    "more": "red",
    "worse": "red",
    "faster": "green",
    "less": "green",
    "better": "green",
}
_MODULES_SHOWN = 12


def render_comparison(result: Mapping[str, Any], console: Console) -> None:
    """Print a comparison for a person."""
    console.print(f"base  {escape(plain(result['base']))}")
    for one in result["comparisons"]:
        console.print(f"with  {escape(plain(one['run']))}")
        console.print(f"\n[bold]{escape(plain(one['verdict']))}[/bold]")
        for note in one["notes"]:
            console.print(f"note: {escape(plain(note))}")
        _print_settings(one["settings"], console)
        for title, rows, unit in _parts(one):
            if rows:
                console.print(_table(title, rows, unit))
        for gate in one["gates"]:
            console.print(_gate_line(gate), style="red" if gate["outcome"] == "failed" else "")


def comparison_markdown(result: Mapping[str, Any]) -> str:
    """The comparison as Markdown, ready for a pull request."""
    parts = []
    for one in result["comparisons"]:
        base, other = (PurePath(str(path)).name for path in (result["base"], one["run"]))
        parts.append(f"**{sentence(one['verdict'])}**\n\n{name_cell(base)} → {name_cell(other)}")
        if one["settings"]:
            rows = [
                [name_cell(row["key"]), name_cell(row["before"]), name_cell(row["after"])]
                for row in one["settings"]
            ]
            parts.append(table(["what differs", "before", "after"], [], rows))
        for title, rows_of_part, unit in _parts(one):
            if rows_of_part:
                cells = [[name_cell(_name(row)), *_cells(row, unit)] for row in rows_of_part]
                parts.append(table([title], ["before", "after", "change", "95 % interval", "verdict"], cells))
        parts += [f"- {sentence(_gate_line(gate))}" for gate in one["gates"]]
    return "\n\n".join(parts) + "\n"


def _parts(one: Mapping[str, Any]) -> list[tuple[str, Sequence[Mapping[str, Any]], str]]:
    step = [{"name": "step", **one["step"]}]
    told = [row for row in one["modules"] if row["verdict"] in ("slower", "faster", "new", "gone")]
    return [
        ("step and phases", [*step, *one["phases"]], "ms"),
        ("stage", one["stages"], "ms"),
        ("module (self time)", told[:_MODULES_SHOWN], "ms"),
        ("memory", one["memory"], "MB"),
        ("accuracy", one["accuracy"], ""),
    ]


def _print_settings(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    if not rows:
        console.print("settings and environment: equal")
        return
    shown = Table(title="what differs", title_justify="left", box=None, pad_edge=False)
    for name in ("key", "before", "after"):
        shown.add_column(name, overflow="fold")
    for row in rows:
        shown.add_row(*(escape(plain(row[key])) for key in ("key", "before", "after")))
    console.print(shown)


def _table(title: str, rows: Sequence[Mapping[str, Any]], unit: str) -> Table:
    shown = Table(box=None, pad_edge=False)
    shown.add_column(title, overflow="fold")
    for name in ("before", "after", "change", "95 % interval"):
        shown.add_column(
            f"{name} [{unit}]".replace(" []", "") if name in ("before", "after") else name, justify="right"
        )
    shown.add_column("verdict", overflow="fold")
    for row in rows:
        cells = _cells(row, unit)
        style = _STYLES.get(str(row["verdict"]), "")
        shown.add_row(escape(plain(_name(row))), *map(escape, cells), style=style)
    return shown


def _name(row: Mapping[str, Any]) -> str:
    name = str(row.get("path") or row.get("name"))
    return f"{name} (was {row['was']})" if row.get("was") else name


def _cells(row: Mapping[str, Any], unit: str) -> list[str]:
    scale = 1e-6 if unit == "MB" else 1.0
    change = "" if row["relative"] is None else f"{row['relative']:+.1%}"
    interval = row.get("relative_ci95")
    return [
        _figure(row["before"], scale),
        _figure(row["after"], scale),
        change,
        f"[{interval[0]:+.1%}, {interval[1]:+.1%}]" if interval and interval[0] != interval[1] else "",
        plain(row["verdict"]),
    ]


def _figure(value: float | None, scale: float) -> str:
    return "-" if value is None else f"{value * scale:.3f}"


def _gate_line(gate: Mapping[str, Any]) -> str:
    why = f" ({gate['why']})" if gate.get("why") else ""
    return f"gate {plain(gate['gate'])}: {gate['outcome']}{why}"

"""A comparison of runs as one offline page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from detscope.report.figures import plain
from detscope.report.model import Block, Chart, Column, Notes, Section, Table
from detscope.report.render.page import render_page
from detscope.report.sections.common import BLUE, GREY, RED

MOST_BARS = 20
_SLOWER, _FASTER = ("slower", "more", "worse"), ("faster", "less", "better")


def comparison_html(result: Mapping[str, Any]) -> str:
    """One section per later run."""
    base = PurePath(str(result["base"])).name
    sections = [_section(number, one) for number, one in enumerate(result["comparisons"], 1)]
    made = "Made by detscope. Intervals: 95 %, by bootstrap over blocks of steps; the file needs no network."
    return render_page("Comparison", f"against {plain(base)}", sections, [], made)


def _section(number: int, one: Mapping[str, Any]) -> Section:
    name = plain(PurePath(str(one["run"])).name)
    blocks: list[Block] = []
    remarks = [plain(note) for note in one["notes"]]
    remarks += [f"gate {plain(gate['gate'])}: {gate['outcome']}" for gate in one["gates"]]
    if remarks:
        blocks.append(Notes(remarks))
    columns = [Column("what differs", "code"), Column("before", "code"), Column("after", "code")]
    different = [[row["key"], str(row["before"]), str(row["after"])] for row in one["settings"]]
    blocks.append(
        Table(f"differs-{number}", "Settings and environment", columns, different or [["nothing", "", ""]])
    )
    told = [row for row in one["modules"] if not str(row["verdict"]).startswith(("no difference", "cannot"))]
    if told:
        blocks.append(_bars(number, told[:MOST_BARS]))
    parts: list[tuple[str, Sequence[Mapping[str, Any]], str]] = [
        ("Step and phases (ms)", [{"name": "step", **one["step"]}, *one["phases"]], "ms"),
        ("Stages (ms)", one["stages"], "ms"),
        ("Modules, self time (ms)", one["modules"], "ms"),
        ("Memory", one["memory"], "bytes"),
        ("Accuracy", one["accuracy"], "number"),
    ]
    blocks += [
        _table(f"{title.split()[0].lower()}-{number}", title, rows, unit)
        for title, rows, unit in parts
        if rows
    ]
    text = plain(one["verdict"])
    return Section(f"run-{number}", name, text[:1].upper() + text[1:], "", blocks)


def _table(name: str, title: str, rows: Sequence[Mapping[str, Any]], unit: str) -> Table:
    kind: Any = unit
    columns = [Column("name", "code"), Column("before", kind), Column("after", kind), Column("change")]
    columns += [Column("95 % interval"), Column("verdict")]
    body = [
        [
            row.get("path") or row.get("name"),
            row["before"],
            row["after"],
            _percent(row["relative"]),
            _ends(row),
            row["verdict"],
        ]
        for row in rows
    ]
    return Table(name, title, columns, body, searchable=len(rows) > 12)


def _bars(number: int, rows: Sequence[Mapping[str, Any]]) -> Chart:
    ordered = list(reversed(rows))
    values = [row["difference"] or 0.0 for row in ordered]
    colours = [
        RED if row["verdict"] in _SLOWER else BLUE if row["verdict"] in _FASTER else GREY for row in ordered
    ]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": [plain(row["path"]) for row in ordered],
        "marker": {"color": colours},
        "hovertemplate": "%{y}: %{x:+.3f} ms<extra></extra>",
    }
    layout = {"xaxis": {"title": {"text": "change of self time, ms per step"}}, "yaxis": {}}
    return Chart(f"bars-{number}", "Modules whose time changed", [trace], layout, 90 + 24 * len(rows))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}"


def _ends(row: Mapping[str, Any]) -> str:
    ends = row.get("relative_ci95")
    return f"{ends[0]:+.1%} to {ends[1]:+.1%}" if ends and ends[0] != ends[1] else ""

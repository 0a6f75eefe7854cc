"""A step: its phases as one bar that adds up to the wall time, and all steps over time."""

from __future__ import annotations

from typing import Any

import polars as pl

from detscope.analyze.drawing import ReportData, binned_steps, thinned
from detscope.report.figures import is_number, mapping, percent, rows, with_unit
from detscope.report.model import Absent, Block, Chart, Column, Section, Table
from detscope.report.sections.common import BAR_LAYOUT, BLUE, GREY, ORANGE, PHASE_COLOURS, RED, one_bar

_MODES = (
    ("warmup", "warm-up", GREY, "x"),
    ("recorded", "recorded", BLUE, "circle"),
    ("bare", "bare (unrecorded)", ORANGE, "diamond"),
    ("ops", "with operators", RED, "triangle-up"),
)


def section(data: ReportData) -> Section | Absent:
    """Phases and steps."""
    summary = data.summary
    phases = [row for row in rows(summary, "phases") if is_number(row.get("ms"))]
    whole = mapping(summary, "step_ms").get("p50")
    if not phases or not is_number(whole):
        return Absent("A step", "no complete step was recorded")
    largest = max(phases, key=lambda row: row["ms"])
    bar = one_bar(
        [(row["name"], row["ms"], PHASE_COLOURS.get(row["name"], GREY)) for row in phases if row["ms"]]
    )
    blocks: list[Block] = [
        Chart("phases", f"The phases of a step add up to {with_unit(whole, 'ms')}", bar, BAR_LAYOUT, 150),
        Table(
            "phases-table",
            "Phases of the typical step; they add up to the median",
            [
                Column("Phase"),
                Column("ms", "ms"),
                Column("share", "share"),
                Column("median ms", "ms"),
                Column("n", "count"),
            ],
            [[row["name"], row["ms"], row["share"], row.get("p50"), row.get("n")] for row in phases],
        ),
        _over_time(data),
        _bins(data),
    ]
    slow = rows(summary, "outliers")[:50]
    if slow:
        blocks.append(
            Table(
                "outliers",
                f"{len(rows(summary, 'outliers'))} steps far above the median: in medians, not in shares",
                [
                    Column("step", "count"),
                    Column("ms", "ms"),
                    Column("times median", "number"),
                    Column("why", "sentence"),
                ],
                [[row.get("step"), row.get("ms"), row.get("times_median"), _why(row)] for row in slow],
            )
        )
    return Section(
        "step",
        "A step",
        f"{largest['name'].capitalize()} takes {percent(largest['share'])} of {with_unit(whole, 'ms')}",
        "Wall time from asking for a batch to asking for the next. Each phase is its share of the typical"
        " steps times the median step, so that phases add up to it; `other` is what lies in none.",
        blocks,
    )


def _why(row: Any) -> str:
    special = row.get("special")
    parts = [
        str(row.get("file") or ""),
        str(row.get("why") or ""),
        *(special if isinstance(special, list) else []),
    ]
    return "; ".join(part for part in parts if part)


def _over_time(data: ReportData) -> Chart:
    traces = []
    for mode, name, colour, symbol in _MODES:
        chosen = data.steps.filter(pl.col("mode") == mode)
        if chosen.height:
            x, y = thinned(chosen["step"].to_list(), [round(ms, 4) for ms in chosen["ms"].to_list()])
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers" if chosen.height < 400 or mode != "recorded" else "lines",
                    "name": name,
                    "x": x,
                    "y": y,
                    "marker": {"color": colour, "symbol": symbol, "size": 7},
                    "line": {"color": colour, "width": 1},
                }
            )
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": "ms"}, "rangemode": "tozero"}}
    return Chart(
        "steps-over-time", "Every step over time: warm-up, recorded and bare steps apart", traces, layout
    )


def _bins(data: ReportData) -> Table:
    return Table(
        "steps-table",
        "Steps over time in stretches",
        [
            Column("steps"),
            Column("lowest ms", "ms"),
            Column("median ms", "ms"),
            Column("highest ms", "ms"),
            Column("n", "count"),
        ],
        [
            [f"{row['first']}–{row['last']}", row["lowest"], row["median"], row["highest"], row["n"]]
            for row in binned_steps(data.steps)
        ],
    )

"""Cost against content: a step's time against boxes, proposals and pixels."""

from __future__ import annotations

from typing import Any

import polars as pl

from detscope.analyze.drawing import MOST_POINTS, ReportData
from detscope.analyze.step.cost_content import line
from detscope.report.figures import is_number, plain
from detscope.report.model import Absent, Chart, Column, Section, Table
from detscope.report.sections.common import BLUE

# column of the content table, how many of it the slope is for, what they are called
_MEASURES = (
    ("boxes", 10, "annotated boxes"),
    ("proposals", 100, "proposals"),
    ("detections", 100, "detections"),
    ("network_pixels", 1_000_000, "pixels in the network's input"),
)


def section(data: ReportData) -> Section | Absent:
    """How far the content explains the time."""
    content = data.content.filter(pl.col("mode").is_in(["recorded", "ops"]))
    figures, choices = [], []
    for column, per, name in _MEASURES:
        known = content.select(column, "ms").drop_nulls()
        if not known.height:
            continue
        pairs = [(float(x), float(y)) for x, y in known.iter_rows()]
        found = line(pairs, per, name)
        figures.append((name, per, found))
        choices.append((name, _scatter(pairs[:MOST_POINTS], name)))
    if not choices:
        return Absent("Cost against content", "what was in the steps is not known")
    return Section(
        "content",
        "Cost against content",
        _title(figures),
        "Every point is a measured step. Slope by least squares with its 95 % interval; r²: the share of the"
        " variation that it explains.",
        [
            Chart(
                "content-chart",
                "Milliseconds of a step against what was in it",
                choices[0][1],
                {"xaxis": {}, "yaxis": {"title": {"text": "ms"}, "rangemode": "tozero"}},
                320,
                choices,
            ),
            Table(
                "content-table",
                "Slopes",
                [
                    Column("against"),
                    Column("slope"),
                    Column("95 % interval"),
                    Column("r²", "number"),
                    Column("n", "count"),
                    Column("remark", "sentence"),
                ],
                [_row(name, per, found) for name, per, found in figures],
            ),
        ],
    )


def _scatter(pairs: list[tuple[float, float]], name: str) -> list[dict[str, Any]]:
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [x for x, _ in pairs],
            "y": [round(y, 4) for _, y in pairs],
            "marker": {"color": BLUE, "opacity": 0.7},
            "hovertemplate": f"%{{x}} {name}: %{{y:.2f}} ms<extra></extra>",
        }
    ]


def _title(figures: list[tuple[str, int, dict[str, Any]]]) -> str:
    known = [(name, found["r2"]) for name, _, found in figures if is_number(found.get("r2"))]
    if not known:
        return "The content of the steps did not vary enough to tell what it costs"
    name, explained = max(known, key=lambda item: item[1])
    if explained < 0.1:
        return "What is in the images explains little of the variation between steps"
    return f"{name.capitalize()} explain {explained * 100:.0f} % of the variation between steps"


def _row(name: str, per: int, found: dict[str, Any]) -> list[Any]:
    slope, ends = found.get("slope"), found.get("ci95")
    text = f"{slope:+.3g} ms per {per:,}" if is_number(slope) else None
    between = f"[{ends[0]:+.3g}, {ends[1]:+.3g}]" if ends else None
    return [name, text, between, found.get("r2"), found.get("n"), plain(found.get("why") or "")]

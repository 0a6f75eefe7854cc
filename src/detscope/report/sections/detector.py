"""The detector: its stages as a pipeline from image to boxes, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detscope.analyze.drawing import ReportData
from detscope.report.figures import is_number, number, percent, rows
from detscope.report.model import Absent, Chart, Column, Pipeline, PipeStage, Section, Table
from detscope.report.sections.common import BACKWARD, FORWARD, shown_name, takes

Row = Mapping[str, Any]


def section(data: ReportData) -> Section | Absent:
    """Stages in the order of the model."""
    stages = rows(data.summary, "stages")
    top = [row for row in stages if row.get("depth") == 0 and _total(row) > 0]
    if not top:
        return Absent("The detector", "stages need --level modules and a detector whose family is known")
    return Section(
        "detector",
        "The detector",
        _title(top),
        "Stages from image to boxes; a stage holds its parts. Forward is wall time inside the stage, backward"
        " the time the autograd engine spends on what the stage made.",
        [_pipeline(top, stages), _chart(top), _table(stages)],
    )


def _total(row: Row) -> float:
    return float(row.get("total_ms", row.get("ms")) or 0.0)


def _forward(row: Row) -> float:
    return float(row.get("forward_ms", row.get("ms")) or 0.0)


def _backward(row: Row) -> float:
    return float(row.get("backward_ms") or 0.0)


def _title(top: Sequence[Row]) -> str:
    for get, whole in ((_backward, "the backward pass"), (_forward, "the time")):
        total = sum(get(row) for row in top)
        if total > 0:
            most = max(top, key=get)
            return f"{shown_name(most['name'])} {takes(most['name'])} {percent(get(most) / total)} of {whole}"
    return "Stages"


def _pipeline(top: Sequence[Row], stages: Sequence[Row]) -> Pipeline:
    longest = max(max(_forward(row), _backward(row)) for row in top)
    boxes = []
    for row in top:
        if row["name"].startswith("("):
            continue
        inner = [part for part in stages if part["name"].startswith(f"{row['name']}.") and part["depth"] == 1]
        text = f"{number(_forward(row))} ms forward"
        if _backward(row):
            text += f", {number(_backward(row))} ms backward"
        boxes.append(
            PipeStage(
                shown_name(row["name"]),
                round(100 * _forward(row) / longest, 1),
                round(100 * _backward(row) / longest, 1),
                text,
                [f"{part['name'].partition('.')[2]} {number(_total(part))} ms" for part in inner],
            )
        )
    return Pipeline("Stages from image to boxes", boxes)


def _chart(top: Sequence[Row]) -> Chart:
    names = [shown_name(row["name"]) for row in top][::-1]
    traces: list[dict[str, Any]] = []
    for label, get, colour in (("forward", _forward, FORWARD), ("backward", _backward, BACKWARD)):
        values = [round(get(row), 4) for row in top][::-1]
        if any(values):
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": label,
                    "x": values,
                    "y": names,
                    "marker": {"color": colour},
                    "hovertemplate": "%{y}: %{x:.3f} ms " + label + "<extra></extra>",
                }
            )
    layout = {"barmode": "group", "xaxis": {"title": {"text": "ms per step"}}, "yaxis": {}}
    return Chart("stages", "Time of each stage, forward and backward", traces, layout, 70 + 46 * len(top))


def _table(stages: Sequence[Row]) -> Table:
    training = any("backward_ms" in row for row in stages)
    if training:
        columns = [
            Column("Stage", "code"),
            Column("forward ms", "ms"),
            Column("backward ms", "ms"),
            Column("total ms", "ms"),
        ]
        body = [
            [row["name"], row["forward_ms"], row["backward_ms"], row["total_ms"], row["share"]]
            for row in stages
        ]
    else:
        columns = [
            Column("Stage", "code"),
            Column("ms", "ms"),
            Column("median ms", "ms"),
            Column("p95 ms", "ms"),
        ]
        body = [
            [row["name"], row.get("ms"), row.get("p50"), row.get("p95"), row.get("share")] for row in stages
        ]
    depths = [row["depth"] if is_number(row.get("depth")) else 0 for row in stages]
    return Table(
        "stages-table",
        "Stages and their parts",
        [*columns, Column("share of the step", "share")],
        body,
        depth=depths,
    )

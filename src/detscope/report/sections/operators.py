"""Operators and kernels by module, and the roofline: how much of the machine's peak they reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detscope.analyze.drawing import ReportData
from detscope.report.figures import is_number, mapping, percent, plain, rows
from detscope.report.model import Absent, Block, Chart, Column, Section, Table
from detscope.report.sections.common import BACKWARD, FORWARD, GREY


def section(data: ReportData) -> Section | Absent:
    """Operators, most expensive first; a roofline where FLOPs were counted."""
    operators = rows(data.summary, "operators")
    roofline = mapping(data.summary, "roofline")
    if not operators and not rows(roofline, "points"):
        return Absent("Operators", "operators need --level ops")
    blocks: list[Block] = []
    if rows(roofline, "points"):
        blocks += _roofline(roofline)
    if operators:
        blocks += [_top(operators), _table(operators)]
    return Section(
        "operators",
        "Operators",
        _title(operators, roofline),
        plain(roofline.get("definition") or "Self time of operators per step of the recorded window."),
        blocks,
    )


def _title(operators: list[Mapping[str, Any]], roofline: Mapping[str, Any]) -> str:
    if operators:
        summed: dict[str, float] = {}
        for row in operators:
            summed[row["name"]] = summed.get(row["name"], 0.0) + float(row.get("share") or 0.0)
        top = max(summed, key=lambda name: summed[name])
        return f"{top} takes {percent(summed[top])} of the operators' time"
    return f"The model reaches {percent(roofline.get('share_of_peak'))} of this machine's arithmetic peak"


def _top(operators: list[Mapping[str, Any]]) -> Chart:
    summed: dict[str, dict[str, float]] = {}
    for row in operators:
        part = summed.setdefault(plain(row["name"]), {"forward": 0.0, "backward": 0.0, "other": 0.0})
        direction = row.get("direction") if row.get("direction") in ("forward", "backward") else "other"
        part[str(direction)] += float(row.get("self_ms") or 0.0)
    names = sorted(summed, key=lambda name: -sum(summed[name].values()))[:15][::-1]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": direction,
            "x": [round(summed[name][direction], 4) for name in names],
            "y": names,
            "marker": {"color": colour},
        }
        for direction, colour in (("forward", FORWARD), ("backward", BACKWARD), ("other", GREY))
    ]
    layout = {"barmode": "stack", "xaxis": {"title": {"text": "self ms per step"}}, "yaxis": {}}
    return Chart("operators-chart", "Operators by their own time", traces, layout, 90 + 24 * len(names))


def _table(operators: list[Mapping[str, Any]]) -> Table:
    keys = ["name", "module", "direction", "stage", "count", "self_ms", "share"]
    columns = [
        Column("operator", "code"),
        Column("module", "code"),
        Column("direction"),
        Column("stage"),
        Column("count", "count"),
        Column("self ms", "ms"),
        Column("share", "share"),
    ]
    if any(is_number(row.get("device_ms")) for row in operators):
        keys.append("device_ms")
        columns.append(Column("device ms", "ms"))
    body = [["" if row.get(key) is None else row.get(key) for key in keys] for row in operators]
    return Table("operators-table", "Operators by module and direction", columns, body, searchable=True)


def _roofline(roofline: Mapping[str, Any]) -> list[Block]:
    points = rows(roofline, "points")
    peak, bandwidth = roofline.get("peak_flops_per_s"), roofline.get("bandwidth_bytes_per_s")
    traces: list[dict[str, Any]] = []
    for direction, colour in (("forward", FORWARD), ("backward", BACKWARD)):
        chosen = [row for row in points if row.get("direction") == direction]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": direction,
                "x": [row.get("flops_per_byte") for row in chosen],
                "y": [row.get("gflops_per_s") for row in chosen],
                "text": [plain(row.get("path")) for row in chosen],
                "marker": {"color": colour, "size": 9, "opacity": 0.8},
                "hovertemplate": "%{text}<br>%{x:.2f} FLOP/B, %{y:.2f} GFLOP/s<extra></extra>",
            }
        )
    if is_number(peak) and is_number(bandwidth):
        ridge = peak / bandwidth
        x = [ridge / 1000, ridge, ridge * 100]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "this machine's roof (measured)",
                "x": x,
                "y": [min(peak, v * bandwidth) / 1e9 for v in x],
                "line": {"color": GREY},
            }
        )
    layout = {
        "xaxis": {"type": "log", "title": {"text": "FLOP per byte"}},
        "yaxis": {"type": "log", "title": {"text": "GFLOP/s"}},
    }
    columns = [
        Column("module", "code"),
        Column("direction"),
        Column("FLOPs", "number"),
        Column("bytes", "bytes"),
        Column("FLOP/B", "number"),
        Column("GFLOP/s", "number"),
        Column("of the roof", "share"),
    ]
    keys = ("path", "direction", "flops", "bytes", "flops_per_byte", "gflops_per_s", "share_of_roof")
    body = [[row.get(key) for key in keys] for row in points]
    return [
        Chart("roofline", "FLOPs and bytes against what this machine can do", traces, layout, 420),
        Table("roofline-table", "Modules on the roofline", columns, body, searchable=True),
    ]

"""Operators and kernels by module, and the roofline: how much of the machine's peak they reach."""

from __future__ import annotations

from collections.abc import Sequence

from detscope.analyze.device.roofline import Roofline
from detscope.analyze.drawing import ReportData
from detscope.analyze.step.operators import OperatorFigures
from detscope.report.colours import BACKWARD, FORWARD, GREY
from detscope.report.figures import percent
from detscope.report.model import (
    BRIEF_ROWS,
    Absent,
    Axis,
    Block,
    Chart,
    Column,
    Fact,
    Facts,
    Section,
    Series,
    Table,
    Value,
)
from detscope.report.sections import SectionPart

MOST_BARS = 15
_ABOVE = {
    "memory": "above the memory roof: its data stayed in a cache",
    "arithmetic": "above the arithmetic roof, which was measured too low",
}
_COLOURS = {"forward": FORWARD, "backward": BACKWARD, "other": GREY}


def section(data: ReportData) -> Section | Absent:
    """Operators, most expensive first; a roofline where FLOPs were counted."""
    operators: list[OperatorFigures] = data.summary.operators
    roofline: Roofline = data.summary.roofline
    if not operators and not roofline.points:
        return Absent("Operators", "operators need --level ops")
    blocks: list[Block] = [*_roofline_blocks(roofline)]
    if operators:
        blocks += [_operators_chart(operators), _operators_table(operators)]
    definition = roofline.definition if roofline.points else ""
    if operators:
        side = data.summary.find_side_steps("ops")
        which = f"the {side.words}" if side is not None else "the recorded window"
        definition = f"Self time of operators, ms per step of {which}; shares are of it. {definition}".strip()
    return Section("operators", "Operators", _headline(operators, roofline), definition, blocks)


def _headline(operators: Sequence[OperatorFigures], roofline: Roofline) -> str:
    if not operators:
        return f"The model reaches {percent(roofline.share_of_peak)} of this machine's arithmetic peak"
    summed: dict[str, float] = {}
    for row in operators:
        summed[row.name] = summed.get(row.name, 0.0) + row.share
    top = max(summed, key=lambda name: summed[name])
    return f"{top} takes {percent(summed[top])} of the operators' time"


def _operators_chart(operators: Sequence[OperatorFigures]) -> Chart:
    summed: dict[str, dict[str, float]] = {}
    for row in operators:
        part = summed.setdefault(row.name, dict.fromkeys(_COLOURS, 0.0))
        part[row.direction if row.direction in _COLOURS else "other"] += row.self_ms
    names = sorted(summed, key=lambda name: -sum(summed[name].values()))[:MOST_BARS][::-1]
    lines = [
        Series(direction, [round(summed[name][direction], 4) for name in names], names, colour, "bars")
        for direction, colour in _COLOURS.items()
    ]
    height = 90 + 24 * len(names)
    return Chart(
        "operators-chart", "Operators by their own time", lines, Axis("self ms per step"), height=height
    )


def _operators_table(operators: Sequence[OperatorFigures]) -> Table:
    columns = [
        Column("operator", "code"),
        Column("direction"),
        Column("module", "code"),
        Column("stage", brief=False),
        Column("count", "count"),
        Column("self ms", "ms"),
        Column("share", "share"),
    ]
    rows: list[list[Value]] = [
        [row.name, row.direction, row.module, row.stage or "", row.count, row.self_ms, row.share]
        for row in operators
    ]
    if any(row.device_ms is not None for row in operators):
        columns.append(Column("device ms", "ms"))
        rows = [[*cells, row.device_ms] for cells, row in zip(rows, operators, strict=True)]
    caption = "Operators by module and direction"
    return Table("operators-table", caption, columns, rows, searchable=True, brief_rows=BRIEF_ROWS)


def _roofline_blocks(roofline: Roofline) -> list[Block]:
    points = roofline.points
    if not points:
        return []
    lines = []
    for direction in ("forward", "backward"):
        chosen = [row for row in points if row.direction == direction]
        if not chosen:
            continue
        speeds = [row.gflops_per_s for row in chosen]
        details = [
            f"{row.path}: {row.flops_per_byte:.2f} FLOP/B, {row.gflops_per_s:.2f} GFLOP/s" for row in chosen
        ]
        at = [row.flops_per_byte for row in chosen]
        lines.append(Series(direction, at, speeds, _COLOURS[direction], "points", details=details))
    peak, bandwidth = roofline.peak_flops_per_s, roofline.bandwidth_bytes_per_s
    if peak and bandwidth:
        ridge = peak / bandwidth
        at = [ridge / 1000, ridge, ridge * 100]
        roof = [min(peak, x * bandwidth) / 1e9 for x in at]
        lines.append(Series("this machine's roof (measured)", at, roof, GREY))
    columns = [
        Column("module", "code"),
        Column("direction"),
        Column("FLOPs", "number"),
        Column("bytes", "bytes"),
        Column("FLOP/B", "number"),
        Column("GFLOP/s", "number"),
        Column("of the roof", "share"),
        Column("remark", "sentence"),
    ]
    rows = [
        [
            row.path,
            row.direction,
            row.flops,
            row.bytes,
            row.flops_per_byte,
            row.gflops_per_s,
            row.share_of_roof,
            _ABOVE[row.above] if row.above is not None else "",
        ]
        for row in points
    ]
    over = [row for row in points if row.above == "arithmetic"]
    too_low = []
    if over or (roofline.share_of_peak or 0.0) > 1:
        many = f"{len(over)} of {len(points)} points lie" if over else "the whole model lies"
        words = f"{many} above the arithmetic roof: it was measured too low, perhaps on a busy machine"
        too_low = [Facts([Fact("roof", f"{words}; shares of it are too high", "warn")])]
    label = "FLOPs and bytes against what this machine can do"
    axes = Axis("FLOP per byte", "log"), Axis("GFLOP/s", "log")
    return [
        Chart("roofline", label, lines, *axes, height=420),
        *too_low,
        Table("roofline-table", "Modules on the roofline", columns, rows, searchable=True),
    ]


PART = SectionPart("operators", 70, section, unasked=("eval", "import"))

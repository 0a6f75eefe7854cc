"""Cost against content: a step's time against boxes, proposals and pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from detscope.analyze.drawing import MOST_POINTS, ReportData
from detscope.analyze.step.content import ContentFigures
from detscope.analyze.step.cost_content import ContentCost, fit_cost
from detscope.report.colours import BLUE
from detscope.report.figures import count, number, percent
from detscope.report.model import (
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

BRIEF_SLOPES = 8
LEAST_R2 = 0.1  # a line that explains less is not worth a row on a terminal
# column of the content table, how many of it the slope is for, what they are called
_MEASURES = (
    ("boxes", 10, "annotated boxes"),
    ("proposals", 100, "proposals"),
    ("detections", 100, "boxes found"),
    ("network_pixels", 1_000_000, "pixels in the network's input"),
)


def section(data: ReportData) -> Section | Absent:
    """How far the content explains the time."""
    content = data.content.filter(pl.col("mode").is_in(["recorded", "ops"]))
    found: list[tuple[int, ContentCost]] = []
    choices: list[tuple[str, Sequence[Series]]] = []
    infers = data.summary.verb == "infer"
    for column, per, name in sorted(_MEASURES, key=lambda one: infers and one[0] != "detections"):
        pairs = [(float(x), float(y)) for x, y in content.select(column, "ms").drop_nulls().iter_rows()]
        if pairs:
            found.append((per, fit_cost(pairs, per, name)))
            choices.append((name, [_scatter_of(pairs[:MOST_POINTS], name)]))
    known = {cost.measure for _, cost in found if cost.slope is not None}
    if not choices:
        return Absent("Cost against content", "what was in the steps is not known")
    choices = [choice for choice in choices if choice[0] in known]  # what never varied explains nothing
    stages = [cost for cost in data.summary.cost_against_content or () if cost.slope is not None]
    if not choices and not stages:
        return Absent("Cost against content", "the steps did not vary enough in what was in them")
    blocks: list[Block] = [Facts(list(_content_facts(data.summary.content)), full=False)]
    if choices:
        axes = Axis(), Axis("ms" if data.device_steps is None else "ms on the device", lowest=0)
        label = "Milliseconds of a step against what was in it"
        blocks.append(Chart("content-chart", label, choices[0][1], *axes, choices=choices))
    blocks.append(_slopes_table("content-table", "Slopes", [_slope_row(cost, per) for per, cost in found]))
    stages.sort(key=lambda cost: -(cost.r2 or 0.0))
    if stages:
        rows = [[cost.stage, *_slope_row(cost, None)] for cost in stages]
        told = min(BRIEF_SLOPES, sum((cost.r2 or 0.0) >= LEAST_R2 for cost in stages))
        caption = "Stages against what was in the images"
        blocks.append(_slopes_table("content-stages", caption, rows, staged=True, brief_rows=told))
    return Section(
        "content",
        "Cost against content",
        _headline([cost for _, cost in found]),
        "Every point is a measured step. Slope by least squares with its 95 % interval; r²: the share of the"
        " variation that it explains.",
        blocks,
    )


def _content_facts(content: ContentFigures) -> Iterator[Fact]:
    parts = [
        f"{text} {name}"
        for name, value, text in (
            ("boxes", content.boxes_per_image, number(content.boxes_per_image)),
            ("proposals", content.proposals_per_image, number(content.proposals_per_image)),
            ("pixels", content.pixels_per_image, count(content.pixels_per_image)),
        )
        if value is not None
    ]
    if parts:
        share = content.padding_share
        tail = f"; {percent(share)} of the batch is padding" if share is not None else ""
        yield Fact("content", "per image " + ", ".join(parts) + tail)


def _scatter_of(pairs: Sequence[tuple[float, float]], name: str) -> Series:
    details = [f"{x:,.0f} {name}: {y:.2f} ms" for x, y in pairs]
    return Series(
        name, [x for x, _ in pairs], [round(y, 4) for _, y in pairs], BLUE, "points", details=details
    )


def _headline(costs: Sequence[ContentCost]) -> str:
    known = [(cost.measure, cost.r2) for cost in costs if cost.r2 is not None]
    if not known:
        return "The content of the steps did not vary enough to tell what it costs"
    name, explained = max(known, key=lambda item: item[1])
    if explained < LEAST_R2:
        return "What is in the images explains little of the variation between steps"
    return f"{name.capitalize()} explain {explained * 100:.0f} % of the variation between steps"


def _slope_row(cost: ContentCost, per: int | None) -> list[Value]:
    unit = cost.unit if per is None else f"ms per {per:,}"
    slope = f"{cost.slope:+.3g} {unit}" if cost.slope is not None else None
    ends = f"[{cost.ci95.low:+.3g}, {cost.ci95.high:+.3g}]" if cost.ci95 else None
    return [cost.measure, slope, ends, cost.r2, cost.n, cost.why or ""]


def _slopes_table(
    name: str, caption: str, rows: list[list[Value]], staged: bool = False, brief_rows: int = 0
) -> Table:
    columns = [Column("against"), Column("slope"), Column("95 % interval"), Column("r²", "number")]
    columns += [Column("n", "count"), Column("remark", "sentence")]
    if staged:
        columns.insert(0, Column("stage", "code"))
    return Table(name, caption, columns, rows, brief_rows=brief_rows)


PART = SectionPart(
    "content", 110, section, order_in={"infer": 18}, unasked=("eval", "import", "run", "record")
)

"""Several runs in their order: each figure as a line and a row, and where it changed."""

from __future__ import annotations

from detscope.analyze.compare.trend import Trend, TrendRow
from detscope.report.colours import BLUE, PALETTE
from detscope.report.figures import number
from detscope.report.model import Axis, Block, Chart, Column, Fact, Facts, Kind, Section, Series, Table

_BRIEF_ROWS = 12


def trend_section(trend: Trend) -> Section:
    """The trend of several runs."""
    turns = [Fact("changed", text, "strong") for text in trend.turns]
    if not turns:
        turns = [Fact("changed", "no point differs from the one before it by more than noise")]
    order = "time" if trend.by == "time" else "commits, by their first run"
    blocks: list[Block] = [Facts([Fact("order", order), *turns])]
    step = next((row for row in trend.rows if row.name == "step_p50"), None)
    if step is not None:
        blocks.append(_step_chart(trend, step))
    stages = [row for row in trend.rows if row.name.startswith("stage.")]
    if stages:
        blocks.append(_stage_chart(trend, stages))
    blocks.append(_point_table(trend))
    blocks += [_figure_table(trend)]
    title = trend.turns[0] if trend.turns else f"{len(trend.points)} runs: no change seen"
    definition = "Every point against the one before it; verdicts hold for all points at once (Holm)."
    return Section("trend", "Trend", title[:1].upper() + title[1:], definition, blocks, brief_title=True)


def _labels(trend: Trend) -> list[str]:
    """One per point; equal ones get a number, because a chart's places are told apart by their names."""
    seen: dict[str, int] = {}
    found = []
    for point in trend.points:
        seen[point.label] = seen.get(point.label, 0) + 1
        again = seen[point.label]
        found.append(point.label if again == 1 else f"{point.label} ({again})")
    return found


def _step_chart(trend: Trend, row: TrendRow) -> Chart:
    values = [value or 0.0 for value in row.values]
    details = []
    for label, value, change in zip(_labels(trend), values, row.changes, strict=True):
        against = f", {change.relative:+.1%} ({change.verdict_text})" if change and change.relative else ""
        details.append(f"{label}: {number(value)} ms{against}")
    ups = [
        0.0,
        *(
            (change.ci95[1] - (change.difference or 0.0)) if change and change.ci95 else 0.0
            for change in row.changes[1:]
        ),
    ]
    downs = [
        0.0,
        *(
            ((change.difference or 0.0) - change.ci95[0]) if change and change.ci95 else 0.0
            for change in row.changes[1:]
        ),
    ]
    series = Series(
        "median step", _labels(trend), values, BLUE, "both", details=details, error_up=ups, error_down=downs
    )
    label = "Median step of every point; bars: 95 % interval of the change against the point before"
    return Chart("trend-step", label, [series], Axis("", "names"), Axis("ms", lowest=0), legend="none")


def _stage_chart(trend: Trend, rows: list[TrendRow]) -> Chart:
    outer = [row for row in rows if row.name.count(".") == 1][: len(PALETTE)]
    series = [
        Series(row.name.partition(".")[2], _labels(trend), list(row.values), colour, "both")
        for row, colour in zip(outer, PALETTE, strict=False)
    ]
    return Chart("trend-stages", "Stages of every point", series, Axis("", "names"), Axis("ms", lowest=0))


def _point_table(trend: Trend) -> Table:
    columns = [Column("point", "code"), Column("began"), Column("commit", "code"), Column("runs", "code")]
    body = [
        [label, point.time, point.commit, ", ".join(point.runs)]
        for label, point in zip(_labels(trend), trend.points, strict=True)
    ]
    return Table("trend-points", "Points", columns, body)


def _figure_table(trend: Trend) -> Table:
    kinds: dict[str, Kind] = {"bytes": "bytes", "": "score"}
    columns = [Column("figure", "code"), *(Column(label, "number") for label in _labels(trend))]
    columns.append(Column("last against first", "change"))
    body = []
    for row in trend.rows:
        first, last = row.values[0], row.values[-1]
        whole = last / first - 1 if first and last is not None else None
        values = [_value_text(value, kinds.get(row.unit, "number")) for value in row.values]
        body.append([f"{row.name}{f', {row.unit}' if row.unit not in ('bytes', '') else ''}", *values, whole])
    return Table("trend", "Figures", columns, body, brief_rows=min(_BRIEF_ROWS, len(body)))


def _value_text(value: float | None, kind: Kind) -> str:
    from detscope.report.render.cells import cell_of

    return cell_of(value, Column("", kind)).text

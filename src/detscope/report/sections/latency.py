"""The latency of an inference: its distribution, the percentiles with what they need, the slowest images."""

from __future__ import annotations

import polars as pl

from detscope.analyze.drawing import ReportData
from detscope.analyze.step.latency import LatencyBin, cumulated_shares, latency_bins
from detscope.analyze.step.steps import MEASURED_MODES
from detscope.analyze.summary import RunSummary
from detscope.report.colours import BLUE, SKY
from detscope.report.figures import interval, number, percent, with_unit
from detscope.report.model import (
    Axis,
    Block,
    Chart,
    Column,
    Mark,
    Section,
    Series,
    Table,
    Value,
)
from detscope.report.sections import SectionPart

BRIEF_SLOW = 5
_DEFINITION = (
    "Wall time of one pass, from asking for its images to the boxes; warm-up is apart. A percentile is told"
    " once one pass beyond it has been seen with 99 % certainty."
)


def section(data: ReportData) -> Section | None:
    """Nothing where the run did not infer."""
    summary = data.summary
    if summary.verb != "infer" or summary.step_ms.p50 is None:
        return None
    modes = set(data.steps["mode"].to_list())
    mode = next((one for one in MEASURED_MODES if one in modes), "recorded")
    chosen = data.steps.filter(pl.col("mode") == mode)
    durations = [float(ms) for ms in chosen["ms"].to_list()]
    bins = latency_bins(durations)
    blocks: list[Block] = [_percentiles_table(summary)]
    if bins:
        blocks += [_latency_chart(summary, durations, bins), _bins_table(bins, _unit_of(summary))]
    return Section("latency", "Latency", _headline(summary), _DEFINITION, blocks)


def slowest_section(data: ReportData) -> Section | None:
    """The slowest images by name; nothing where the run did not infer."""
    summary = data.summary
    if summary.verb != "infer" or not summary.slowest:
        return None
    first = summary.slowest[0]
    times = f", {number(first.times_median)} times the median" if first.times_median is not None else ""
    title = f"{first.file or f'Step {first.step}'} took {with_unit(first.ms, 'ms')}{times}"
    return Section("slowest", f"Slowest {_unit_of(summary)}", title, "", [_slowest_table(summary)])


def _unit_of(summary: RunSummary) -> str:
    return "images" if summary.batch_size == 1 else "batches"


def _headline(summary: RunSummary) -> str:
    step = summary.step_ms
    tail = f", 95 % within {with_unit(step.p95, 'ms')}" if step.p95 is not None else ""
    slow = summary.slowest[0] if summary.slowest else None
    worst = f"; the slowest took {with_unit(slow.ms, 'ms')}" if slow is not None else ""
    return f"Half of the {_unit_of(summary)} take at most {with_unit(step.p50, 'ms')}{tail}{worst}"


def _percentiles_table(summary: RunSummary) -> Table:
    step = summary.step_ms
    needs = {need.percentile: need for need in summary.percentile_needs}
    rows: list[list[Value]] = [["p50", with_unit(step.p50, "ms"), f"95 % interval {interval(step.ci95)}"]]
    for percentile, value in ((95, step.p95), (99, step.p99)):
        need = needs.get(percentile)
        told = with_unit(value, "ms") if value is not None else "not told"
        of_all = f"of {step.mean_n} {_unit_of(summary)}, bare ones as well" if step.mean_n > step.n else ""
        rows.append([f"p{percentile}", told, need.words if need is not None else of_all])
    if summary.first_image_ms is not None:
        rows.append(["the very first", with_unit(summary.first_image_ms, "ms"), "with all that is done once"])
    columns = [Column("percentile"), Column("latency"), Column("remark", "sentence")]
    return Table("percentiles", f"Latency of {step.n} {_unit_of(summary)}", columns, rows)


def _latency_chart(summary: RunSummary, durations: list[float], bins: list[LatencyBin]) -> Chart:
    near = [one for one in bins if one.high_ms is not None]
    edges: list[float | str] = [one.low_ms for one in near]
    edges.append(near[-1].high_ms or near[-1].low_ms)
    counts: list[float | str | None] = [*(one.n for one in near), 0]
    last = near[-1].high_ms or near[-1].low_ms
    spent, shares = cumulated_shares(durations)
    drawn = [(ms, 100 * share) for ms, share in zip(spent, shares, strict=True) if ms <= last]
    unit = _unit_of(summary)
    details = [f"{one.low_ms:g} to {one.high_ms:g} ms: {one.n} {unit}, {percent(one.share)}" for one in near]
    lines = [
        Series(unit, edges, counts, SKY, "area", width=1, steps=True, details=[*details, ""]),
        Series(
            "took at most so long",
            [ms for ms, _ in drawn],
            [round(share, 2) for _, share in drawn],
            BLUE,
            steps=True,
            on_right=True,
            details=[f"{share:.1f} % took at most {ms:.2f} ms" for ms, share in drawn],
        ),
    ]
    step = summary.step_ms
    told = (("p50", step.p50), ("p95", step.p95), ("p99", step.p99))
    marks = [Mark(value, name) for name, value in told if value is not None and value <= last]
    return Chart(
        "latency-chart",
        f"How many {unit} took how long, and which share took at most so long",
        lines,
        Axis("ms"),
        Axis(unit, lowest=0),
        Axis(f"% of the {unit}", lowest=0, highest=102),
        marks=marks,
    )


def _bins_table(bins: list[LatencyBin], unit: str) -> Table:
    columns = [Column("from ms", "number"), Column("to ms"), Column(unit, "count")]
    columns += [Column("share", "share", bar=True), Column("up to here", "share")]
    rows: list[list[Value]] = [
        [one.low_ms, "and more" if one.high_ms is None else number(one.high_ms), one.n, one.share, one.up_to]
        for one in bins
    ]
    return Table("latency-table", "Latency in stretches", columns, rows)


def _slowest_table(summary: RunSummary) -> Table:
    rows = summary.slowest
    columns = [Column("image" if summary.batch_size == 1 else "images", "code"), Column("ms", "ms")]
    columns += [Column("times median", "number"), Column("size", "number"), Column("boxes found", "count")]
    columns.append(Column(f"above {number(summary.score)}", "count", brief=False))
    told = any(row.proposals is not None for row in rows)
    columns += [Column("proposals", "count", brief=False)] if told else []
    explained = any(row.why for row in rows)  # those far above the median
    columns += [Column("far above the median because", "sentence")] if explained else []
    body: list[list[Value]] = [
        [
            *(row.file or f"step {row.step}", row.ms, row.times_median, row.size, row.boxes, row.above_score),
            *((row.proposals,) if told else ()),
            *((row.why or "",) if explained else ()),
        ]
        for row in rows
    ]
    caption = f"The slowest {_unit_of(summary)} and what was in them"
    return Table("slowest-table", caption, columns, body, brief_rows=BRIEF_SLOW)


PARTS = [SectionPart("latency", 15, section), SectionPart("slowest", 16, slowest_section)]

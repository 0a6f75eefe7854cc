"""A step: its phases as one bar that adds up to the wall time, and all steps over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from detscope.analyze.drawing import ReportData, binned_steps, thinned
from detscope.analyze.step.beside import StepPart
from detscope.analyze.step.steps import Outlier, PhaseFigures
from detscope.analyze.summary import OptimizerFacts, RunSummary
from detscope.report.colours import BLUE, GREY, ORANGE, PHASE_COLOURS, RED, one_bar
from detscope.report.figures import CANNOT_TELL, interval, number, percent, with_unit
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

MOST_OUTLIERS, BRIEF_OUTLIERS, BRIEF_PARTS = 50, 5, 8
_WHO = ("host", "device")
_DEFINITION = (
    "Wall time from asking for a batch to asking for the next. Each phase is its share of the typical"
    " steps times the median step, so that phases add up to it; `other` is what lies in none."
)
_TWO_CLOCKS = (
    "The device has a clock of its own: its phases add up to its step, work and idle time; `data` is the time"
    " in which it stood idle while the host waited for a batch."
)
_WAYS = {"fused": "fused", "foreach": "all tensors of a group at once", "loop": "tensor by tensor"}
_MODES = (
    ("warmup", "warm-up", GREY, "cross"),
    ("recorded", "recorded", BLUE, "circle"),
    ("bare", "bare (unrecorded)", ORANGE, "diamond"),
    ("ops", "with operators", RED, "triangle"),
)


def section(data: ReportData) -> Section | Absent:
    """Phases and steps."""
    summary = data.summary
    whole = summary.step_ms.p50
    phases = [phase for phase in summary.phases if _can_have(summary, phase)] or summary.phases
    if not phases or whole is None:
        return Absent("A step", "no complete step was recorded")
    largest = max(phases, key=lambda phase: phase.ms)
    on_device = summary.clocks.clock == "device"
    blocks: list[Block] = [
        Facts(list(_time_facts(data)), full=False),
        _clocks_chart(phases, whole) if on_device else _phases_chart(phases, whole),
        _clocks_table(summary, phases) if on_device else _phases_table(summary, phases, whole),
        *_parts_tables(summary),
        _steps_chart(data),
        _steps_table(data),
    ]
    outliers = summary.outliers
    if outliers and not summary.slowest:  # else they are among the slowest images
        blocks.append(
            Table(
                "outliers",
                f"{len(outliers)} steps far above the median: in medians, not in shares",
                [
                    Column("step", "count"),
                    Column("ms", "ms"),
                    Column("times median", "number"),
                    Column("why", "sentence"),
                ],
                [[row.step, row.ms, row.times_median, _why_slow(row)] for row in outliers[:MOST_OUTLIERS]],
                brief_rows=BRIEF_OUTLIERS,
            )
        )
    told_ms, definition = whole, _DEFINITION
    if on_device and summary.clocks.device_step_ms is not None:
        told_ms, definition = summary.clocks.device_step_ms, f"{_DEFINITION} {_TWO_CLOCKS}"
    of = f"the device's {with_unit(told_ms, 'ms')}" if on_device else with_unit(told_ms, "ms")
    title = f"{largest.name.capitalize()} takes {percent(largest.share)} of {of}"
    return Section("step", "A step", title, definition, blocks)


def _can_have(summary: RunSummary, phase: PhaseFigures) -> bool:
    """Where nothing trains there is no backward pass: a phase that nobody can have is not told as 0."""
    trains = any(one.name == "backward" and (one.ms or one.host_ms) for one in summary.phases)
    return bool(phase.ms or phase.host_ms) or (trains and summary.verb != "import")


def _phases_chart(phases: Sequence[PhaseFigures], whole: float) -> Chart:
    bar = one_bar(
        [(phase.name, phase.ms, PHASE_COLOURS.get(phase.name, GREY)) for phase in phases if phase.ms]
    )
    label = f"The phases of a step add up to {with_unit(whole, 'ms')}"
    return Chart("phases", label, bar, Axis("ms"), Axis(hidden=True), height=150)


def _clocks_chart(phases: Sequence[PhaseFigures], whole: float) -> Chart:
    """One bar for the host and one for the device: the same phases on two clocks."""
    lines = []
    for phase in phases:
        times = [phase.host_ms or 0.0, phase.ms]
        if any(times):
            idle = f", {number(phase.idle_ms)} ms of it idle" if phase.idle_ms else ""
            details = [f"{phase.name} on the {who}: {ms:.3f} ms" for who, ms in zip(_WHO, times, strict=True)]
            details[1] += idle
            colour = PHASE_COLOURS.get(phase.name, GREY)
            texts = [phase.name if ms > 0.06 * whole else "" for ms in times]
            lines.append(Series(phase.name, times, _WHO, colour, "bars", texts=texts, details=details))
    label = "The phases of a step on the host's clock and on the device's"
    return Chart("phases", label, lines, Axis("ms"), Axis(scale="names", falling=True), height=220)


def _phases_table(summary: RunSummary, phases: Sequence[PhaseFigures], whole: float) -> Table:
    rows = [[phase.name, phase.ms, phase.share, phase.p50, phase.n] for phase in phases]
    columns = [Column("Phase"), Column("ms", "ms"), Column("share", "share", bar=True)]
    columns += [Column("median ms", "ms", brief=False), Column("n", "count", brief=False)]
    return Table(
        "phases-table",
        "Phases of a step",
        columns,
        [*rows, ["step", whole, 1.0, whole, summary.step_ms.n]],
        brief_rows=len(rows) + 1 if summary.verb != "infer" else 0,
    )


def _parts_tables(summary: RunSummary) -> Iterator[Table]:
    """What the optimizer's phase and `other` are made of, by name."""
    rows: list[list[Value]] = [
        [part.phase, part.name, part.ms, part.share, part.calls, _how_known(part), _where(part)]
        for part in summary.parts
    ]
    if any(part.known != "rest" for part in summary.parts):
        columns = [Column("Phase"), Column("part"), Column("ms per step", "ms"), Column("share", "share")]
        columns += [Column("calls", "number", brief=False), Column("known", brief=False), Column("where")]
        caption = "What is done beside the model: parts of the phases optimizer and other"
        yield Table("step-parts", caption, columns, rows, brief_rows=BRIEF_PARTS)


def _how_known(part: StepPart) -> str:
    if part.known == "rest":
        return "neither measured nor seen"
    return part.known if part.looks is None else f"{part.known}, {part.looks} looks"


def _where(part: StepPart) -> str | None:
    lines = [f"{one.file}:{one.line}" for one in (part.own, part.inside) if one is not None]
    return ", in ".join(lines) or None


def _clocks_table(summary: RunSummary, phases: Sequence[PhaseFigures]) -> Table:
    """The device's time first, the host's beside it; both add up to their step."""
    clocks, step = summary.clocks, summary.step_ms
    most = "at most idle ms" if any(cause.at_most for cause in clocks.idle) else "idle ms"
    columns = [Column("Phase"), Column("device ms", "ms"), Column("share", "share", bar=True)]
    columns += [Column(most, "ms"), Column("host ms", "ms")]
    columns += [Column("median ms", "ms", brief=False), Column("n", "count", brief=False)]
    rows: list[list[Value]] = [
        [phase.name, phase.ms, phase.share, phase.idle_ms, phase.host_ms, phase.p50, phase.n]
        for phase in phases
    ]
    own_ms = clocks.device_step_ms
    rows.append(["step", own_ms, 1.0, clocks.idle_ms, step.p50, own_ms, clocks.n])
    brief = len(rows) if summary.verb != "infer" else 0
    return Table("phases-table", "Phases of a step, device and host", columns, rows, brief_rows=brief)


def _why_slow(row: Outlier) -> str:
    return "; ".join(part for part in (row.file, row.size, row.why, *row.special) if part)


def _time_facts(data: ReportData) -> Iterator[Fact]:
    summary, step = data.summary, data.summary.step_ms
    infers, recorded_elsewhere = summary.verb == "infer", summary.verb == "import"
    label = "latency" if infers else "step"
    many = f"{step.n} {'passes' if infers else 'steps'}"
    text = f"median {with_unit(step.p50, 'ms')}, 95 % interval {interval(step.ci95)}, {many}"
    yield Fact(label, text, "strong")
    words = {need.percentile: need.words for need in summary.percentile_needs}
    ends = ((95, step.p95, step.p95_why), (99, step.p99, step.p99_why))
    told = (
        f"p{name} {with_unit(value, 'ms') if why is None else words.get(name, why)}"
        for name, value, why in ends
    )
    yield Fact("", ", ".join(told))
    if infers and summary.first_image_ms is not None:
        yield Fact("", f"the very first took {with_unit(summary.first_image_ms, 'ms')}")
    speed = with_unit(summary.images_per_s, "images/s") if summary.images_per_s is not None else CANNOT_TELL
    if step.mean is not None:
        speed += f", mean {with_unit(step.mean, 'ms')}, over all {step.mean_n} measured"
        speed += "" if recorded_elsewhere else ", bare ones as well"
    yield Fact("speed", speed)
    if (batch := summary.accumulated) is not None:
        text = f"{batch.per_step:.3g} per step, {with_unit(batch.ms, 'ms')} each"
        if batch.images is not None:
            text += f", {number(batch.images, 1)} images each: {number(batch.images_per_step, 1)} per step"
        yield Fact("batches", text)
    steady = summary.stability
    yield Fact(
        "steadiness", f"{steady.verdict}: {steady.reason}", "" if steady.verdict == "stable" else "warn"
    )
    warmup = summary.warmup
    if warmup.n:
        first, median = with_unit(warmup.first_ms, "ms"), with_unit(warmup.p50, "ms")
        yield Fact("warm-up", f"{warmup.n} steps apart: first {first}, median {median}")
    cost = summary.overhead_ratio
    if cost.value is not None and cost.ci95 is not None:
        ends95 = f"[{number(cost.ci95.low, 3)}, {number(cost.ci95.high, 3)}]"
        ratio = f"{number(cost.value, 3)} x a step without a recorder"
        ratio += " by the device's clock" if cost.clock == "device" else ""
        yield Fact("own cost", f"{ratio}, 95 % interval {ends95}, n {cost.n}")
    elif not recorded_elsewhere:
        yield Fact("own cost", f"{CANNOT_TELL}: {cost.why}")
    if (attributed := summary.backward_attributed) is not None:
        by = summary.backward_attributed_by
        yield Fact("backward", f"{percent(attributed)} of its time belongs to modules (by {by})")
    for optimizer in summary.optimizers:
        if optimizer.groups and optimizer.tensors:
            yield Fact("optimizer", _tell_optimizer(optimizer))


def _tell_optimizer(optimizer: OptimizerFacts) -> str:
    """`AdamW: 120 tensors in 2 groups, tensor by tensor`."""
    groups, different = optimizer.groups or 0, optimizer.different_groups
    text = f"{optimizer.name}: {optimizer.tensors:,} tensors in {groups:,} group{'s' * (groups != 1)}"
    if different is not None and different < groups:
        text += f" ({different:,} by their settings)"
    return f"{text}, {_WAYS[optimizer.way]}" if optimizer.way in _WAYS else text


def _steps_chart(data: ReportData) -> Chart:
    lines = []
    for mode, name, colour, symbol in _MODES:
        chosen = data.steps.filter(pl.col("mode") == mode)
        if chosen.height:
            x, y = thinned(chosen["step"].to_list(), [round(ms, 4) for ms in chosen["ms"].to_list()])
            points = chosen.height < 400 or mode != "recorded"
            look = "points" if points else "lines"
            lines.append(Series(name, x, y, colour, look, symbol, width=1))  # type: ignore[arg-type]
    apart = f": {', '.join(line.name for line in lines)} apart" if len(lines) > 1 else ""
    label = f"Every {'pass' if data.summary.verb == 'infer' else 'step'} over time{apart}"
    return Chart("steps-over-time", label, lines, Axis("step"), Axis("ms", lowest=0))


def _steps_table(data: ReportData) -> Table:
    columns = [Column("steps"), Column("lowest ms", "ms"), Column("median ms", "ms")]
    columns += [Column("highest ms", "ms"), Column("n", "count")]
    rows: list[list[Value]] = [
        [f"{row.first}–{row.last}", row.lowest_ms, row.median_ms, row.highest_ms, row.n]
        for row in binned_steps(data.steps)
    ]
    return Table("steps-table", "Steps over time in stretches", columns, rows)


PART = SectionPart("step", 20, section, unasked=("eval", "import"))

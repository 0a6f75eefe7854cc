"""The detector: its stages as a pipeline from image to boxes, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from detscope.analyze.drawing import ReportData
from detscope.analyze.step.modules import StageFigures
from detscope.report.colours import shown_name, takes
from detscope.report.figures import number, percent
from detscope.report.model import (
    Absent,
    Block,
    Column,
    Fact,
    Facts,
    Pipeline,
    PipeStage,
    Section,
    Table,
)
from detscope.report.sections import SectionPart

_DEFINITION = (
    "Stages from image to boxes; a stage holds its parts. Forward is wall time inside the stage, backward"
    " the time the autograd engine spends on what the stage made."
)
_ON_DEVICE = "Both are the device's time, with what it stood idle in them; the host's is beside it."


def section(data: ReportData) -> Section | Absent:
    """Stages in the order of the model."""
    stages = data.summary.stages
    top = [stage for stage in stages if stage.depth == 0 and stage.total_ms > 0]
    if not top:
        return Absent("The detector", "stages need --level modules and a detector whose family is known")
    blocks: list[Block] = [_pipeline_of(top, stages), _stages_table(stages)]
    other = next((stage for stage in stages if stage.in_model_ms is not None), None)
    if other is not None:
        parts = f"{number(other.in_model_ms)} ms in the model, {number(other.in_loop_ms)} ms in the loop"
        blocks.append(Facts([Fact("other", parts)]))
    return Section(
        "detector",
        "The detector",
        _headline(top),
        _DEFINITION if all(stage.clock == "host" for stage in stages) else f"{_DEFINITION} {_ON_DEVICE}",
        blocks,
    )


def _headline(top: Sequence[StageFigures]) -> str:
    backward = any(stage.backward_ms for stage in top)
    times = {stage.name: stage.backward_ms if backward else stage.forward_ms for stage in top}
    most = max(times, key=lambda name: times[name])
    whole = "the backward pass" if backward else "the time"
    return f"{shown_name(most)} {takes(most)} {percent(times[most] / sum(times.values()))} of {whole}"


def _pipeline_of(top: Sequence[StageFigures], stages: Sequence[StageFigures]) -> Pipeline:
    longest = max(max(stage.forward_ms, stage.backward_ms) for stage in top)
    boxes = []
    for stage in top:
        if stage.name.startswith("("):
            continue
        inner = [part for part in stages if part.depth == 1 and part.name.startswith(f"{stage.name}.")]
        text = f"{number(stage.forward_ms)} ms forward"
        text += f", {number(stage.backward_ms)} ms backward" if stage.backward_ms else ""
        boxes.append(
            PipeStage(
                shown_name(stage.name),
                round(100 * stage.forward_ms / longest, 1),
                round(100 * stage.backward_ms / longest, 1),
                text,
                [f"{part.name.partition('.')[2]} {number(part.total_ms)} ms" for part in inner],
            )
        )
    return Pipeline("Stages from image to boxes", boxes)


def _stages_table(stages: Sequence[StageFigures]) -> Table:
    columns = [
        Column("Stage", "code"),
        Column("total ms", "ms"),
        Column("share of the step", "share", bar=True),
    ]
    rows: list[list[str | float | None]] = [[row.name, row.total_ms, row.share] for row in stages]
    if any(stage.backward_ms for stage in stages):
        columns += [Column("forward ms", "ms"), Column("backward ms", "ms")]
        rows = [[*row, stage.forward_ms, stage.backward_ms] for row, stage in zip(rows, stages, strict=True)]
    if any(stage.host_ms is not None for stage in stages):
        columns += [Column("idle ms", "ms", brief=False), Column("host ms", "ms")]
        rows = [[*row, stage.idle_ms, stage.host_ms] for row, stage in zip(rows, stages, strict=True)]
    if any(stage.n for stage in stages):
        known = any(stage.p95 is not None for stage in stages)
        columns += [Column("median ms", "ms"), Column("p95 ms", "ms", brief=known)]
        columns += [Column("n", "count", brief=False)]
        rows = [[*row, stage.p50, _tell_p95(stage), stage.n] for row, stage in zip(rows, stages, strict=True)]
    depth = [stage.depth for stage in stages]
    return Table("stages-table", "Stages and their parts", columns, rows, depth=depth, brief_rows=len(rows))


def _tell_p95(stage: StageFigures) -> float | str | None:
    return f"n/a ({stage.p95_why})" if stage.p95 is None and stage.p95_why else stage.p95


PART = SectionPart("detector", 50, section)

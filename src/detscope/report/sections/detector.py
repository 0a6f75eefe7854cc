"""The detector: its stages as a pipeline from image to boxes, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from detscope.analyze.drawing import ReportData
from detscope.analyze.step.latency import SummedStage
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

_DEFINITION = "Stages from image to boxes; a stage holds its parts. Times are wall time inside the stage"
_BACKWARD = ", backward the time the autograd engine spends on what the stage made"
_ON_DEVICE = " They are the device's, with what it stood idle in them; the host's are beside them."


def section(data: ReportData) -> Section | Absent:
    """Stages in the order of the model."""
    stages = data.summary.stages
    top = [stage for stage in stages if stage.depth == 0 and stage.total_ms > 0]
    if not top:
        return Absent("The detector", "stages need --level modules and a detector whose family is known")
    blocks: list[Block] = [_pipeline_of(top, stages), _stages_table(stages)]
    facts = list(_summed_facts(data.summary.nms))
    other = next((stage for stage in stages if stage.in_model_ms is not None), None)
    if other is not None:
        parts = f"{number(other.in_model_ms)} ms in the model, {number(other.in_loop_ms)} ms in the loop"
        facts.append(Fact("other", parts))
    if facts:
        blocks.append(Facts(facts))
    backward = _BACKWARD if any(stage.backward_ms for stage in stages) else ""
    where = "" if all(stage.clock == "host" for stage in stages) else _ON_DEVICE
    definition = f"{_DEFINITION}{backward}.{where}"
    return Section("detector", "The detector", _headline(top), definition, blocks)


def _summed_facts(nms: SummedStage | None) -> Iterator[Fact]:
    """Suppression runs in two stages of some families: what it costs is one sum."""
    if nms is not None:
        where = f" in {len(nms.stages)} stages" if len(nms.stages) > 1 else ""
        whole = f"{number(nms.ms)} ms{where}, {percent(nms.share)} of the step"
        yield Fact("NMS", f"{whole}: {', '.join(nms.stages)}")


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
        columns += [Column("median ms", "ms"), *([Column("p95 ms", "ms")] if known else [])]
        columns += [Column("n", "count", brief=False)]
        rows = [
            [*row, stage.p50, *([stage.p95] if known else []), stage.n]
            for row, stage in zip(rows, stages, strict=True)
        ]
    depth = [stage.depth for stage in stages]
    return Table("stages-table", "Stages and their parts", columns, rows, depth=depth, brief_rows=len(rows))


PART = SectionPart("detector", 50, section, unasked=("eval", "import"))

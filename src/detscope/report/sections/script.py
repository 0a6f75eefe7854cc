"""A script that was recorded as it is: its parts, the models it called, and whose `other` is."""

from __future__ import annotations

from collections.abc import Iterator

from detscope.analyze.drawing import ReportData
from detscope.analyze.script import ScriptFigures
from detscope.report.model import BRIEF_ROWS, Column, Section, Table
from detscope.report.sections import SectionPart


def section(data: ReportData) -> Section | None:
    """What `detscope run` found; other runs have no such section."""
    script: ScriptFigures | None = data.summary.script
    if script is None:
        return None
    return Section(
        "script",
        "Script",
        _headline(script),
        "Nothing of the script was changed. A step ends where, after an optimizer has stepped, the next batch"
        " is asked for; figures are those of training, where there was any.",
        [table for table in _tables_of(script) if table.rows],
    )


def _headline(script: ScriptFigures) -> str:
    by = f", by {', '.join(script.optimizers)}" if script.optimizers else ""
    named = [part for part in script.parts if part.steps and part.name in ("training", "evaluation")]
    steps = " and ".join(f"{part.steps:,} {part.name}" for part in named)
    return f"{script.name}: " + (f"{steps} steps{by}" if steps else "no step was seen")


def _tables_of(script: ScriptFigures) -> Iterator[Table]:
    columns = [Column("part"), Column("steps", "count"), Column("batches", "count")]
    columns += [Column("step ms, median", "ms"), Column("in all, s", "number")]
    parts = [
        [part.name, part.steps, part.batches, part.step_p50_ms, part.total_s]
        for part in script.parts
        if part.steps
    ]
    yield Table("script-parts", "Parts of the script", columns, parts, brief_rows=BRIEF_ROWS)
    columns = [Column("model"), Column("role"), Column("parameters", "count"), Column("calls", "count")]
    columns.append(Column("forward ms, in all", "ms"))
    models = [
        [" of ".join([*row.inside, str(row.class_name)]), row.role, row.parameters, row.calls, row.forward_ms]
        for row in script.roots
    ]
    yield Table("script-models", "What the script called", columns, models, brief_rows=BRIEF_ROWS)
    columns = [Column("function"), Column("where"), Column("in packages", brief=False)]
    columns += [Column("steps", "count", brief=False), Column("looks", "count", brief=False)]
    columns += [Column("of other", "share"), Column("ms per step", "ms")]
    other = [
        [
            row.function,
            f"{row.file}:{row.line}",
            ", ".join(f"{one.function} ({one.file}:{one.line})" for one in row.inside),
            row.steps,
            row.looks,
            row.share_of_other,
            row.ms,
        ]
        for row in script.other
    ]
    caption = "Time outside of all phases, by the function that was running"
    yield Table("script-other", caption, columns, other, brief_rows=5)


PART = SectionPart("script", 30, section)

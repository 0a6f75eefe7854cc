"""Files that were recorded elsewhere: which, by what, and what they tell without our own recorder."""

from __future__ import annotations

from collections.abc import Iterator

from detscope.analyze.device.imported import ImportedFigures
from detscope.analyze.drawing import ReportData
from detscope.report.figures import CANNOT_TELL
from detscope.report.model import Block, Column, Fact, Facts, Section, Table, Value
from detscope.report.sections import SectionPart


def section(data: ReportData) -> Section | None:
    """Nothing for a run that was recorded here."""
    imported = data.summary.imported
    if imported is None:
        return None
    blocks: list[Block] = [Facts(list(_file_facts(imported)))]
    if imported.stages:
        stages: list[list[Value]] = [[stage.name, stage.total_ms] for stage in imported.stages]
        columns = [Column("stage", "code"), Column("total ms", "ms")]
        blocks.append(
            Table("file-stages", "Stages marked in the file", columns, stages, brief_rows=len(stages))
        )
    if imported.threads:
        columns = [Column("rank"), Column("process"), Column("thread"), Column("busy ms", "ms")]
        columns += [Column("of ms", "ms"), Column("events", "count")]
        threads: list[list[Value]] = [
            [row.rank, row.process, row.thread, row.busy_ns / 1e6, row.span_ns / 1e6, row.events]
            for row in imported.threads
        ]
        blocks.append(Table("threads", "Threads with operators or runtime calls", columns, threads))
    count = len(imported.sources)
    title = f"Recorded elsewhere: {count} file{'' if count == 1 else 's'}"
    return Section("imported", "Files", title, "What other tools recorded, read as it is.", blocks)


def _file_facts(imported: ImportedFigures) -> Iterator[Fact]:
    for source in imported.sources:
        facts = {fact.name: fact.value for fact in source.facts}
        about = [
            str(value) for value in (source.format, facts.get("device_name"), facts.get("device")) if value
        ]
        about += [f"rank {source.rank}"] if source.rank is not None and about else []
        name = source.file or facts.get("source") or facts.get("name") or CANNOT_TELL
        yield Fact("files", f"{name} ({', '.join(about)})" if about else str(name), "strong")
    if imported.steps is not None:
        yield Fact("steps", f"{imported.steps:,}")


PART = SectionPart("imported", 5, section, order_in={"import": 14})

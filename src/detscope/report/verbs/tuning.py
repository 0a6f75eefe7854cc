"""What trying advice told: estimate against measurement, then what to do."""

from __future__ import annotations

from detscope.analyze.sweep.tuning import TuneResult
from detscope.report.figures import signed_interval
from detscope.report.model import Block, Column, Fact, Facts, Section, Table


def tuning_sections(result: TuneResult) -> list[Section]:
    """What was tried and what is kept."""
    columns = [Column("change", "sentence"), Column("estimated", "change"), Column("measured", "change")]
    columns += [Column("95 % interval"), Column("verdict", "sentence")]
    body = [
        [
            row.title,
            row.estimated_gain,
            row.time.gain if row.time else None,
            signed_interval(row.time.gain_ci95) if row.time else "",
            f"{row.verdict}: {row.why}",
        ]
        for row in result.tried
    ]
    caption = "Gain: share of the time per image that a change saves"
    blocks: list[Block] = [Table("tried", caption, columns, body, brief_rows=len(body))]
    if result.config:
        use = f"detscope train --config {result.config}"
        blocks.append(Facts([Fact("use it", use, "strong", stays=True)]))
    return [Section("tuning", "Tuning", result.verdict, "", blocks, brief_title=True)]

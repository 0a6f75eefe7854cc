"""The images of an inference: how many, what was found in them, and which could not be measured."""

from __future__ import annotations

from collections.abc import Iterator

from detscope.analyze.drawing import ReportData
from detscope.report.figures import number
from detscope.report.model import Block, Column, Fact, Facts, Section, Table
from detscope.report.sections import SectionPart

BRIEF_SKIPPED = 20


def section(data: ReportData) -> Section | None:
    """Nothing where the run did not infer."""
    summary = data.summary
    if summary.verb != "infer":
        return None
    skipped = summary.skipped
    blocks: list[Block] = [Facts(list(_image_facts(data)))]
    if skipped:
        columns = [Column("file", "code"), Column("reason", "sentence")]
        rows = [[row.file, row.reason] for row in skipped]
        blocks.append(
            Table("skipped", "Images that could not be measured", columns, rows, brief_rows=BRIEF_SKIPPED)
        )
    left = f", {len(skipped)} could not be measured" if skipped else ""
    return Section("images", "Images", f"{summary.images} images were measured{left}", "", blocks)


def _image_facts(data: ReportData) -> Iterator[Fact]:
    summary = data.summary
    repeat = summary.repeat
    times = "once each" if repeat in (None, 1) else f"{repeat} times each"
    yield Fact("images", f"{summary.images} measured, {times}")
    found = summary.detections
    if found is not None and found.per_image is not None:
        above = f"{number(found.above_score_per_image)} of them above {number(summary.score)}"
        yield Fact("found", f"{number(found.per_image)} detections per image, {above}")


PART = SectionPart("images", 90, section)

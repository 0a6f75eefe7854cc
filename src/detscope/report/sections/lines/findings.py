"""What costs time, where in the code, and what to change: one list of lines and of advice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from detscope.analyze.drawing import ReportData
from detscope.analyze.findings.census import CensusFigures
from detscope.analyze.findings.finding import ASSUMES, Finding
from detscope.analyze.findings.listing import census_command
from detscope.report.blocks.suggestions import device_text, place_text, places_text
from detscope.report.figures import with_unit
from detscope.report.model import Absent, Block, Column, Fact, Facts, Section, Table
from detscope.report.sections import SectionPart

_DEFINITION = (
    "A finding with a line comes first, by what it would cost on a device and how sure that is; then advice"
    " on the whole run; then lines that cost next to nothing; then what lowers the peak of memory. An id"
    " stays the same while rule, file and function do. On a terminal `detscope why` tells them with what to"
    " change."
)
_COLUMNS = (
    Column("id", "code", brief=False),
    Column("what", "sentence"),
    Column("where", "code"),
    Column("ms on a device", "ms"),
    Column("waits", "count", brief=False),
    Column("launches", "count", brief=False),
    Column("ms here", "ms"),
    Column("lowest", "ms", brief=False),
    Column("highest", "ms", brief=False),
    Column("sure", brief=False),
    Column("change", "sentence", brief=False),
)
_EVIDENCE = (
    Column("id", "code", brief=False),
    Column("line", "code"),
    Column("counted per step", brief=False),
    Column("code", "code"),
    Column("called from", "code", brief=False),
    Column("steps", brief=False),
)
Row = list[str | float | None]


def section(data: ReportData) -> Section | Absent | None:
    """All findings, and below them every line with its code; advice alone stands with the verdict."""
    findings, census = data.summary.findings, data.summary.census
    at_lines = [one for one in findings if one.where]
    if census is None:
        how = census_command(data.summary)
        return Absent("Findings", f"a census finds lines that cost time: {how}") if how else None
    if not at_lines:
        return Absent("Findings", "no rule found a line that costs time")
    rows = [row for one in at_lines for row in _line_rows(one, census)]
    blocks: list[Block] = [
        Facts([Fact("on a device", f"an estimate: {ASSUMES}")]),
        Table(
            "findings-list", "What costs time", _COLUMNS, [_row_of(one) for one in findings], unfolded=True
        ),
        Table("findings-lines", "Their lines, as the census saw them", _EVIDENCE, rows),
    ]
    return Section("findings", "Findings", _title(at_lines), _DEFINITION, blocks)


def _title(at_lines: list[Finding]) -> str:
    dearest, many = at_lines[0], len(at_lines)
    what = f"The largest of {many} findings at lines of code" if many > 1 else "One finding at a line of code"
    if dearest.device_ms:
        return f"{what} would cost {device_text(dearest)} per step on a device"
    return f"{what}: {dearest.claim}"


def _row_of(one: Finding) -> Row:
    cost = one.on_device
    saves = f"saves {with_unit(one.saves_bytes, 'bytes')}" if one.saves_bytes is not None else None
    return [
        one.id,
        one.claim,
        places_text(one) or "the whole run",
        None if cost is None else cost.ms,
        None if cost is None else cost.waits,
        None if cost is None else cost.launches,
        saves if one.cost_ms is None else one.cost_ms,
        one.cost_low_ms,
        one.cost_high_ms,
        one.confidence or f"cannot tell: {one.cannot_tell}",
        one.evidence.text if one.change == one.claim else one.change,
    ]


def _line_rows(one: Finding, census: CensusFigures) -> Iterator[Row]:
    for place in one.where:
        seen = [row for row in census.places if row.where == place]
        counted: defaultdict[str, float] = defaultdict(float)
        for row in seen:
            counted[row.kind] += row.count
        yield [
            one.id,
            place_text(place),
            ", ".join(f"{kind} {many:.3g}" for kind, many in counted.items()) or None,
            next((row.code for row in seen if row.code), None),
            None if one.called_from is None else place_text(one.called_from),
            ", ".join(map(str, one.evidence.steps)),
        ]


PART = SectionPart("findings", 25, section, unasked=("eval", "import"))

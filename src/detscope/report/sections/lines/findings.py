"""What costs time, where in the code, and what to change: one list of lines and of advice."""

from __future__ import annotations

from detscope.analyze.drawing import ReportData
from detscope.analyze.findings.finding import ASSUMES, Finding
from detscope.analyze.findings.listing import census_command
from detscope.report.blocks.suggestions import device_text, place_text, places_text
from detscope.report.figures import with_unit
from detscope.report.model import Absent, Block, Column, Fact, Facts, Section, Table
from detscope.report.sections import SectionPart

_DEFINITION = (
    "A finding with a line comes first, by what it would cost on a device; then advice on the whole run;"
    " then lines that cost next to nothing; then what lowers the peak of memory. An id stays the same while"
    " rule, file and function do."
)
_COLUMNS = (
    Column("id", "code", brief=False),
    Column("what", "sentence"),
    Column("where", "code"),
    Column("waits", "count", brief=False),
    Column("launches", "count", brief=False),
    Column("ms here", "ms"),
    Column("low", "ms", brief=False),
    Column("high", "ms", brief=False),
    Column("ms on a device", "ms"),
    Column("sure"),
    Column("change", "sentence"),
)
_EVIDENCE = (
    Column("id", "code"),
    Column("line", "code"),
    Column("called from", "code", brief=False),
    Column("code", "code"),
    Column("rows of the census", "count", brief=False),
    Column("steps", brief=False),
)


def section(data: ReportData) -> Section | Absent | None:
    """All findings, and below them every line with its code; advice alone stands with the verdict."""
    findings = data.summary.findings
    at_lines = [one for one in findings if one.where]
    if not at_lines:
        if data.summary.census is not None:
            return Absent("Findings", "no rule found a line that costs time")
        how = census_command(data.summary)
        return Absent("Findings", f"a census finds lines that cost time: {how}") if how else None
    blocks: list[Block] = [
        Facts([Fact("on a device", f"an estimate: {ASSUMES}")]),
        Table("findings-list", "What costs time", _COLUMNS, [_row_of(one) for one in findings]),
        Table(
            "findings-lines",
            "The lines, as the census saw them",
            _EVIDENCE,
            [row for one in at_lines for row in _line_rows(one)],
        ),
    ]
    return Section("findings", "Findings", _title(at_lines[0]), _DEFINITION, blocks)


def _title(first: Finding) -> str:
    cost = device_text(first)
    there = f"; on a device {cost}" if first.device_ms else ""
    return f"{first.claim[:1].upper()}{first.claim[1:]} ({place_text(first.where[0])}{there})"


def _row_of(one: Finding) -> list[str | float | None]:
    cost, whole = one.on_device, not one.where
    ms_here = one.cost_ms
    return [
        one.id,
        one.claim,
        places_text(one) or "the whole run",
        None if cost is None else cost.waits,
        None if cost is None else cost.launches,
        f"saves {with_unit(one.saves_bytes, 'bytes')}" if ms_here is None and one.saves_bytes else ms_here,
        one.cost_low_ms,
        one.cost_high_ms,
        None if cost is None else cost.ms,
        one.confidence or f"cannot tell: {one.cannot_tell}",
        one.evidence.text if whole and one.change == one.claim else one.change,
    ]


def _line_rows(one: Finding) -> list[list[str | float | None]]:
    """Of the first line the text is known; the others are lines of the same function, or nearly so."""
    steps = ", ".join(map(str, one.evidence.steps))
    called = None if one.called_from is None else place_text(one.called_from)
    return [
        [
            one.id,
            place_text(place),
            called,
            one.code if number == 0 else None,
            one.evidence.rows if number == 0 else None,
            steps if number == 0 else None,
        ]
        for number, place in enumerate(one.where)
    ]


PART = SectionPart("findings", 15, section, unasked=("eval", "import"))

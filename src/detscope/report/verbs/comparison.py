"""Runs against a base: what differs, what changed, and which gates failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from detscope.analyze.compare.change import ModuleChange, NamedChange
from detscope.analyze.compare.gate import GateResult
from detscope.analyze.compare.runs import ComparisonResult, RunComparison
from detscope.report.colours import BLUE, GREY, RED
from detscope.report.figures import signed_interval
from detscope.report.model import Axis, Block, Chart, Column, Fact, Facts, Kind, Section, Series, Table, Tone
from detscope.report.render.page import render_page

MOST_BARS = 20
_BRIEF_MODULES = 12
_OWN, _WHOLE = "self time", "time on the device with what they call"
_TONES: dict[str, Tone] = {
    **dict.fromkeys(("slower", "more", "worse"), "bad"),
    **dict.fromkeys(("faster", "less", "better"), "good"),
}
_COLOURS = {"bad": RED, "good": BLUE}


def comparison_page(result: ComparisonResult) -> str:
    """The comparison as one offline page."""
    made = "Made by detscope. Intervals: 95 %, by bootstrap over blocks of steps; the file needs no network."
    base = PurePath(result.base).name
    return render_page("Comparison", f"against {base}", comparison_sections(result), [], made)


def comparison_sections(result: ComparisonResult) -> list[Section]:
    """One section per later run."""
    return [_run_section(number, result.base, one) for number, one in enumerate(result.comparisons, 1)]


def _run_section(number: int, base: str, one: RunComparison) -> Section:
    facts = [Fact("base", base), Fact("with", one.run)]
    facts += [Fact("note", text, "warn") for text in one.notes]
    if one.clock == "device":
        facts.append(Fact("clock", "phases, stages and modules are the device's, the step is wall time"))
    facts += [_gate_fact(gate) for gate in one.gates]
    if not one.settings:
        facts.append(Fact("differs", "settings and environment: equal"))
    blocks: list[Block] = [Facts(facts)]
    if one.settings:
        columns = [Column("what differs", "code"), Column("before", "code"), Column("after", "code")]
        body = [[row.key, str(row.before), str(row.after)] for row in one.settings]
        title = "Settings and environment"
        blocks.append(Table(f"differs-{number}", title, columns, body, brief_rows=len(body)))
    on, own = (" on the device", _WHOLE) if one.clock == "device" else ("", _OWN)
    if one.told_modules:
        blocks.append(_module_bars(number, one.told_modules[:MOST_BARS], own))
    speed = [one.images_per_s] if one.images_per_s else []
    parts: list[tuple[str, Sequence[NamedChange | ModuleChange], Kind]] = [
        (f"Step and phases{on}, ms", [one.step, *one.phases], "ms"),
        (f"Stages{on}, ms", one.stages, "ms"),
        (f"Modules, {own} in ms", one.modules, "ms"),
        ("Throughput", speed, "number"),
        ("Memory", one.memory, "bytes"),
        ("Accuracy", one.accuracy, "score"),
    ]
    brief_modules = min(_BRIEF_MODULES, len(one.told_modules))
    for title, rows, kind in parts:
        if rows:
            brief = brief_modules if rows is one.modules else len(rows)
            name = f"{title.partition(' ')[0].lower().rstrip(',')}-{number}"
            blocks.append(_change_table(name, title, rows, kind, brief))
    title = one.verdict[:1].upper() + one.verdict[1:]
    return Section(f"run-{number}", PurePath(one.run).name, title, "", blocks, brief_title=True)


def _gate_fact(gate: GateResult) -> Fact:
    why = f" ({gate.why})" if gate.why else ""
    return Fact("gate", f"{gate.gate}: {gate.outcome}{why}", "bad" if gate.outcome == "failed" else "")


def _change_table(
    name: str, title: str, rows: Sequence[NamedChange | ModuleChange], kind: Kind, brief_rows: int
) -> Table:
    columns = [Column("name", "code"), Column("before", kind), Column("after", kind)]
    columns += [Column("change", "change"), Column("95 % interval"), Column("verdict")]
    body = [
        [
            row.row_label,
            row.before,
            row.after,
            row.relative,
            signed_interval(row.relative_ci95),
            row.verdict_text,
        ]
        for row in rows
    ]
    tones = [_TONES.get(row.verdict, "") for row in rows]
    searchable = len(rows) > 12
    return Table(name, title, columns, body, searchable=searchable, tones=tones, brief_rows=brief_rows)


def _module_bars(number: int, rows: Sequence[ModuleChange], own: str) -> Chart:
    ordered = list(reversed(rows))
    values = [row.difference or 0.0 for row in ordered]
    series = Series(
        "change",
        values,
        [row.path for row in ordered],
        [_COLOURS.get(_TONES.get(row.verdict, ""), GREY) for row in ordered],
        "bars",
        details=[f"{row.path}: {value:+.3f} ms" for row, value in zip(ordered, values, strict=True)],
    )
    axis = Axis(f"change of {own}, ms per step")
    height = 90 + 24 * len(rows)
    return Chart(f"bars-{number}", "Modules whose time changed", [series], axis, height=height, legend="none")

"""Runs against a base: what differs, how far to trust it, what changed, and which gates failed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from detscope.analyze.compare.change import Change, Ends, ModuleChange, NamedChange
from detscope.analyze.compare.gate import GateResult
from detscope.analyze.compare.runs import ComparisonResult
from detscope.analyze.compare.sides import LARGEST, RunComparison
from detscope.report.figures import ABSENT, signed_percent
from detscope.report.model import (
    SEARCHED_ROWS,
    Block,
    Card,
    Cards,
    Column,
    Fact,
    Facts,
    Notes,
    Section,
    Table,
    Tone,
)
from detscope.report.render.page import render_page
from detscope.report.sections.files import path_from_here
from detscope.report.verbs.comparison_charts import TONES, difference_flames, forest_plot
from detscope.report.verbs.comparison_trend import trend_section

Rows = Sequence[NamedChange | ModuleChange]
LEAST_WAITING = 0.02  # from which on it is said that one run waited more for cores
_BRIEF_DIFFERENCES = 8
_BRIEF_PARTS = 12
_LONG = ("modules", "operators", "kernels")  # of these a terminal shows what changed
_BYTES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))
_OWN, _WHOLE = "self time", "time on the device with what they call"
METHOD = (
    "Change: after / before - 1 of the figures as they are printed. Interval: 95 %, of the ratio, by blocks"
    " of steps and the variation between processes. Verdicts hold for all rows at once: tables share a risk"
    " of 5 % equally, with Holm's correction inside each; the median step is judged by itself."
)


def comparison_page(result: ComparisonResult) -> str:
    """The comparison as one offline page."""
    made = "Made by detscope. The file needs no network."
    base = PurePath(result.base).name
    return render_page("Comparison", f"against {base}", comparison_sections(result), [], made)


def comparison_sections(result: ComparisonResult) -> list[Section]:
    """One section per later run; of several runs their trend first."""
    briefly = result.trend is not None  # a terminal has no room for all tables of several runs
    sections = [
        _run_section(number, result.base, one, briefly) for number, one in enumerate(result.comparisons, 1)
    ]
    return [trend_section(result.trend), *sections] if result.trend else sections


def _run_section(number: int, base: str, one: RunComparison, briefly: bool) -> Section:
    on, own = (" on the device", _WHOLE) if one.clock == "device" else ("", _OWN)
    peak = [row for row in one.memory if row.name in ("peak", "process")]
    headline = [row for row in (one.step, one.step_p95, one.images_per_s) if row is not None]
    blocks: list[Block] = [Cards(list(_make_cards(headline, peak))), Facts(_list_facts(base, one))]
    if one.settings:
        columns = [Column("what differs", "code"), Column("before", "code"), Column("after", "code")]
        body = [[row.key, str(row.before), str(row.after)] for row in one.settings]
        shown = min(_BRIEF_DIFFERENCES, len(body))
        blocks.append(Table(f"differs-{number}", "What differs", columns, body, brief_rows=shown))
    kinds: list[tuple[str, Rows]] = [("", headline), ("memory ", peak), ("phase ", one.phases)]
    kinds += [("stage ", one.stages), ("module ", one.told_modules), ("device ", one.device)]
    plotted = [(f"{kind}{row.row_label}", row) for kind, rows in kinds for row in rows]
    parts: list[tuple[str, str, Rows, str, int]] = [
        ("step", "Step, ms, and images per second", headline, "", len(headline)),
        ("phases", f"Phases{on}, ms per step", one.phases, "", _BRIEF_PARTS),
        ("stages", f"Stages{on}, ms per step", one.stages, "", _BRIEF_PARTS),
        ("modules", f"Modules, {own}, ms per step", one.modules, "", _BRIEF_PARTS),
        ("operators", "Operators, ms per step", one.operators, "", _BRIEF_PARTS),
        ("kernels", "Kernels, ms", one.kernels, "", _BRIEF_PARTS),
        ("device", "Device", one.device, "", _BRIEF_PARTS),
        ("memory", "Memory", one.memory, "bytes", _BRIEF_PARTS),
        ("accuracy", "Accuracy", one.accuracy, "", _BRIEF_PARTS),
        ("census", "Waits for the device and launches, per step", one.census, "", _BRIEF_PARTS),
    ]
    for name, title, rows, unit, brief in parts:
        if name == "phases":  # the picture of all stands beneath the headline
            blocks += forest_plot(number, plotted)
        if name == "modules":
            blocks += difference_flames(number, one.modules, one.clock)
        if rows:
            blocks += _change_tables(
                f"{name}-{number}", title, rows, unit, 0 if briefly and rows is not headline else brief
            )
    blocks.append(Notes([METHOD]))
    title = one.verdict[:1].upper() + one.verdict[1:]
    short = PurePath(one.run).name.rpartition("-")[2]  # the whole name is the first fact
    return Section(f"run-{number}", f"After: {short}", title, "", blocks, brief_title=True)


def _make_cards(headline: Rows, peak: Rows) -> Iterator[Card]:
    """The change of each headline figure, from what to what, and whether it can be told from noise."""
    for row, unit in [*((row, "") for row in headline), *((row, "bytes") for row in peak[:1])]:
        if row.relative is None:
            continue
        name = f"memory, {row.row_label}" if unit else row.row_label
        measure = "" if unit else " images/s" if "images" in row.row_label else " ms"
        both = f"{figure_text(row.before, unit)} to {figure_text(row.after, unit)}{measure}"
        detail = "; ".join(part for part in (both, interval_text(row), row.verdict_text) if part)
        yield Card(
            name[:1].upper() + name[1:], signed_percent(row.relative), detail, TONES.get(row.verdict, "")
        )


def _list_facts(base: str, one: RunComparison) -> list[Fact]:
    """What one has to know before any figure: what was compared, how it differs, how far to trust it."""
    several, base, after = len(one.runs_before) > 1, path_from_here(base), path_from_here(one.run)
    facts = [
        Fact("before", f"{len(one.runs_before)} runs, the first {base}" if several else base),
        Fact("after", f"{len(one.runs_after)} runs, the first {after}" if several else after),
    ]
    facts += [Fact("note", text, "warn") for text in one.notes]
    if not one.settings:
        facts.append(Fact("differs", "settings and environment: equal"))
    facts += [Fact("stability", text, "warn" if unstable else "") for text, unstable in tell_stability(one)]
    facts += [Fact("between", text) for text in tell_between(one)]
    if one.clock == "device":
        facts.append(Fact("clock", "phases, stages and modules are the device's, the step is wall time"))
    facts += [Fact("gone", text, "good") for text in tell_findings(one)[0]]
    facts += [Fact("new", text, "warn") for text in tell_findings(one)[1]]
    return facts + [_gate_fact(gate) for gate in one.gates]


def tell_stability(one: RunComparison) -> list[tuple[str, bool]]:
    """How steady each side was, and whether that is a warning; several runs of a side in one sentence."""
    found = []
    for side in ("before", "after"):
        runs = [run for run in one.stability if run.side == side]
        unstable = [run for run in runs if run.verdict == "unstable"]
        first = next(iter(unstable or runs), None)
        if first is not None and len(runs) == 1:
            found.append((f"{side}: {first.verdict}: {first.reason}", bool(unstable)))
        elif first is not None:
            told = f"{side}: {len(unstable)} of {len(runs)} runs unstable; one of them: {first.reason}"
            found.append((told if unstable else f"{side}: all {len(runs)} runs stable", bool(unstable)))
    return found


def tell_between(one: RunComparison) -> list[str]:
    """How processes differ, and what that hides."""
    between, step = one.between, one.step
    if between is None or step.resolution is None:
        return []
    if between.step is None:
        return [f"processes vary as measured in these {between.runs} runs"]
    source = f"{between.source} by {between.runs} runs" if between.runs else "assumed"
    told = f"equal processes differ by {between.step:.1%} (a standard deviation, {source})"
    hidden = f"a change of the step below {step.resolution:.1%} cannot be told from one run each"
    if abs(between.waiting) < LEAST_WAITING:
        return [told, hidden]
    who = "after" if between.waiting > 0 else "before"
    waited = f"{who} computed for less of its time: waiting for cores that others took may explain"
    return [told, f"{waited} {math.expm1(abs(between.waiting)):+.0%}", hidden]


def tell_findings(one: RunComparison) -> tuple[list[str], list[str]]:
    """Findings that went, and that came: `tensor_check-1a2b3c4d: ...`."""
    if one.findings is None:
        return [], []
    gone, new = ([f"{row.id}: {row.claim}" for row in side] for side in (one.findings.gone, one.findings.new))
    return gone, new


def _gate_fact(gate: GateResult) -> Fact:
    why = f" ({gate.why})" if gate.why else ""
    tone: Tone = "bad" if gate.outcome == "failed" else ""
    return Fact("gate", f"{gate.gate}: {gate.outcome}{why}", tone, stays=True)


def _change_tables(name: str, title: str, rows: Rows, unit: str, brief: int) -> list[Block]:
    """All rows for a page; for a terminal the headline, or what changed and what is large."""
    shown = [row for row in rows if row.is_seen] if name.startswith(_LONG) else _choose_brief(rows)
    tables: list[Block] = [_change_table(name, title, rows, unit)]
    if brief and shown:
        few = _change_table(f"{name}-brief", title, shown[:brief], unit)
        tables.append(replace(few, full=False, brief_rows=len(few.rows)))
    return tables


def _choose_brief(rows: Rows) -> list[NamedChange | ModuleChange]:
    """Rows that were judged, in the order of the model."""
    return [row for row in rows if row.is_seen or row.chance is not None or row.exact]


def _change_table(name: str, title: str, rows: Rows, unit: str) -> Table:
    columns = [Column("name", "code"), Column("before", "number"), Column("after", "number")]
    columns += [Column("change", "change"), Column("95 % interval"), Column("verdict")]
    body = [
        [
            row.row_label,
            figure_text(row.before, unit),
            figure_text(row.after, unit),
            row.relative,
            interval_text(row),
            row.verdict_text,
        ]
        for row in rows
    ]
    tones = [TONES.get(row.verdict, "") for row in rows]
    return Table(name, title, columns, body, searchable=len(rows) > SEARCHED_ROWS, tones=tones)


def figure_text(value: float | None, unit: str = "") -> str:
    """A figure with all of the five digits that changes are computed from."""
    if value is None:
        return ABSENT
    if unit == "bytes":
        size, unit = next(pair for pair in _BYTES if abs(value) >= pair[0] or pair[0] == 1)
        return f"{figure_text(value / size)} {unit}"
    digits = 4 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, digits)}f}"


def interval_text(row: Change) -> str:
    """`+1.0 % to +5.0 %`; of counts that they are exact; nothing where it is not known."""
    if row.exact:
        return "exact"
    return "" if row.relative_ci95 is None else ends_text(row.relative_ci95)


def ends_text(ends: Ends) -> str:
    """Both ends of an interval; what is larger than anybody reads is said to be larger."""
    beyond = ends[1] > LARGEST > ends[0]
    high = f"over {signed_percent(LARGEST)}" if beyond else signed_percent(ends[1])
    return f"{signed_percent(ends[0])} to {high}"

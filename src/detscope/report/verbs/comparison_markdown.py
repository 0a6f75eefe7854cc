"""A comparison as a comment on a pull request: what differs, the headline, what changed; at most 40 lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from detscope.analyze.compare.change import Change, ModuleChange, NamedChange
from detscope.analyze.compare.runs import ComparisonResult
from detscope.analyze.compare.sides import RunComparison
from detscope.report.figures import signed_percent
from detscope.report.render.markdown import name_cell, sentence
from detscope.report.verbs.comparison import (
    figure_text,
    interval_text,
    tell_between,
    tell_findings,
    tell_stability,
)

MOST_LINES = 40
_DIFFERENCES, _ROWS, _FINDINGS = 4, 8, 4
Row = NamedChange | ModuleChange


def comparison_comment(result: ComparisonResult) -> str:
    """One comparison in full, several as one table; gates that failed always stand in it."""
    alone = len(result.comparisons) == 1
    lines = _tell_one(result, result.comparisons[0]) if alone else _tell_many(result)
    kept = lines[: MOST_LINES - 1]
    if len(lines) > len(kept):
        kept.append(f"_{len(lines) - len(kept)} more lines: `--html FILE` has all of them._")
    return "\n".join(kept) + "\n"


def _tell_one(result: ComparisonResult, one: RunComparison) -> list[str]:
    lines = [f"### {sentence(one.verdict[:1].upper() + one.verdict[1:])}", ""]
    lines += _tell_gates(one)
    lines += _tell_differences(one)
    lines += [f"- {sentence(text)}" for text, unstable in tell_stability(one) if unstable]
    lines += [f"- {sentence(text)}" for text in [*one.notes, *tell_between(one)][:4]]
    for word, texts in zip(("gone", "new"), tell_findings(one), strict=True):
        lines += [f"- {word}: {sentence(text)}" for text in texts[:_FINDINGS]]
    peak = [row for row in one.memory if row.name in ("peak", "process")]
    headline: list[tuple[str, Row, str]] = [
        (row.name, row, "") for row in (one.step, one.step_p95, one.images_per_s) if row is not None
    ]
    headline += [(f"memory.{row.name}", row, "bytes") for row in peak]
    headline += [(row.name, row, "") for row in one.accuracy[:2]]
    headline += [(f"{row.name} per step", row, "") for row in one.census if row.name in ("waits", "launches")]
    lines += ["", *_table_head(), *(_table_row(*row) for row in headline)]
    changed = _list_changed(one)
    if changed:
        lines += ["", f"Changed, of {max(row.rows for _, row in changed)} rows judged:"]
        lines += ["", *_table_head(), *(_table_row(name, row) for name, row in changed[:_ROWS])]
        if len(changed) > _ROWS:
            lines.append(f"| {len(changed) - _ROWS} more | | | | | |")
    before, after = PurePath(result.base).name, PurePath(one.run).name
    return [
        *lines,
        "",
        f"_{name_cell(before)} against {name_cell(after)}; intervals 95 %, corrected by Holm._",
    ]


def _tell_gates(one: RunComparison) -> list[str]:
    return [
        f"- gate {name_cell(gate.gate)}: **{gate.outcome}**{f' ({sentence(gate.why)})' if gate.why else ''}"
        for gate in one.gates
    ]


def _tell_differences(one: RunComparison) -> list[str]:
    if not one.settings:
        return ["- settings and environment: equal"]
    lines = [
        f"- {name_cell(row.key)}: {name_cell(str(row.before)[:60])} → {name_cell(str(row.after)[:60])}"
        for row in one.settings[:_DIFFERENCES]
    ]
    left = len(one.settings) - len(lines)
    return lines + ([f"- {left} more settings or facts differ"] if left > 0 else [])


def _list_changed(one: RunComparison) -> list[tuple[str, Row]]:
    """What the verdict names, the largest part of the step first."""
    tables: list[tuple[str, Sequence[Row]]] = [
        ("phase", one.phases),
        ("stage", one.stages),
        ("module", one.modules),
        ("operator", one.operators),
        ("kernel", one.kernels),
        ("device", one.device),
    ]
    seen = [(f"{kind} {row.row_label}", row) for kind, rows in tables for row in rows if row.is_seen]
    return sorted(seen, key=lambda pair: -abs(pair[1].difference or pair[1].after or pair[1].before or 0.0))


def _table_head() -> list[str]:
    return ["| | before | after | change | 95 % interval | verdict |", "|---|---:|---:|---:|---|---|"]


def _table_row(name: str, row: Change, unit: str = "") -> str:
    figures = f"{figure_text(row.before, unit)} | {figure_text(row.after, unit)}"
    told = f"{signed_percent(row.relative)} | {interval_text(row)} | {sentence(row.verdict_text)}"
    return f"| {name_cell(name)} | {figures} | {told} |"


def _tell_many(result: ComparisonResult) -> list[str]:
    turns = result.trend.turns if result.trend else ()
    lines = [f"### {len(result.comparisons)} runs against {sentence(PurePath(result.base).name)}", ""]
    lines += [f"- {sentence(text)}" for text in turns[:6]]
    for one in result.comparisons:
        lines += [text for text in _tell_gates(one) if "**passed**" not in text]
    lines += ["", *_table_head()]
    return lines + [_table_row(PurePath(one.run).name, one.step) for one in result.comparisons]

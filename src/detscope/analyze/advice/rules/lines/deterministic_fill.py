"""Deterministic algorithms with torch's default: all memory is filled before it is used."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.advice.rules.lines._placed import put_at, without_cost
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.diffs import Code, make_diff, read_statement
from detscope.analyze.findings.finding import Finding


def find_lines(case: LineCase) -> Iterable[Finding]:
    """One finding, where the sources ask for deterministic algorithms."""
    facts = case.facts.get("deterministic_fill") or {}
    if not facts.get("on"):
        return
    steps = case.census.steps  # saving and evaluating in one of them is no part of a step
    rows = case.places("fill", accept=lambda place: place.steps == steps)
    count, size = sum(row.count for row in rows), sum(row.bytes for row in rows)
    calls = _choose_calls(facts.get("calls") or (), case)
    finding = case.make_finding(
        PART.name,
        rows,
        f"Deterministic algorithms are on and torch fills memory that is about to be overwritten: in at least"
        f" {count:.0f} operators per step, {size / 1e6:.3g} MB.",
        "Right after the call of torch.use_deterministic_algorithms:"
        " torch.utils.deterministic.fill_uninitialized_memory = False. Results stay deterministic, unless"
        " something reads memory that was never written.",
        confidence="certain" if len(calls) == 1 else "likely",
        text="torch.utils.deterministic.fill_uninitialized_memory was True in the census steps",
        launches=count,
    )
    fills = [row for row in case.summary.operators if row.name == "aten::fill_"]
    if fills:
        finding = msgspec.structs.replace(
            finding, cost_ms=sum(row.self_ms for row in fills), cost_low_ms=None, cost_high_ms=None
        )
    else:
        finding = without_cost(
            finding, "filling is done inside of operators; --level ops shows it as aten::fill_"
        )
    diff = make_diff([read_statement(one.get("statement")) for one in calls], _rewrite)
    yield msgspec.structs.replace(put_at(finding, calls), diff=diff)


def _rewrite(code: Code) -> list[str] | None:
    """The switch behind `torch.use_deterministic_algorithms(...)`, which stands alone."""
    call = code.tree.value if isinstance(code.tree, ast.Expr) else None
    is_torchs = isinstance(call, ast.Call) and ast.unparse(call.func) == "torch.use_deterministic_algorithms"
    return code.add_line("torch.utils.deterministic.fill_uninitialized_memory = False") if is_torchs else None


def _choose_calls(calls: Sequence[Mapping[str, Any]], case: LineCase) -> list[Mapping[str, Any]]:
    """The script's own before those of packages that work in the step, before all others; three at most."""
    working = {place.where.file.partition("/")[0] for place in case.census.places if "/" in place.where.file}
    own = [one for one in calls if "/" not in one["file"]]
    near = [one for one in calls if one["file"].partition("/")[0] in working]
    return list(own or near or calls)[:3]


PART = AdviceRule("deterministic_fill", 102, lines=find_lines)

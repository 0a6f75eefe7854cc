"""Distances by torch.cdist(p=1) between vectors of few numbers, such as boxes."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import msgspec

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.advice.rules.lines.waits._reads import name_place, tell_times, total
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.diffs import Code
from detscope.analyze.findings.finding import DeviceCost, Finding

NAME = "cdist_few_columns"
# On CUDA each pair is a block of threads of which as many work as there are columns; an estimate of what a
# device of a hundred processors needs for one such block.
PAIR_NS = 2.0


def find(case: LineCase) -> Iterable[Finding]:
    """By function; rows of the pattern `cdist`, which hears sizes."""
    for rows in case.by_function(case.places("cdist")):
        pairs = sum(row.count * int(row.facts["pairs"]) for row in rows)
        columns = max(int(row.facts["columns"]) for row in rows)
        finding = case.make_finding(
            NAME,
            rows,
            f"torch.cdist(p=1) in {name_place(rows[0])}, {tell_times(total(rows))} per step, of vectors with"
            f" {columns} columns, for {pairs:,.0f} pairs",
            "(a[..., :, None, :] - b[..., None, :, :]).abs().sum(-1) gives the same distances by plain"
            " operators, forward and backward",
            confidence="likely",
            text=", ".join(sorted({row.facts["sizes"] for row in rows})[:4]),
            diff=case.write_diff(rows, _rewrite),
        )
        yield msgspec.structs.replace(
            finding,
            on_device=DeviceCost(
                waits=0.0,
                launches=0.0,
                bytes=0.0,
                ms=pairs * PAIR_NS / 1e6,
                assumes=f"{PAIR_NS:g} ns for a pair, a block of threads each; no device was measured",
            ),
        )


def _rewrite(code: Code) -> list[str] | None:
    """`torch.cdist(a, b, p=1)` by plain operators."""
    calls = code.find_calls("cdist")
    if not calls or any(len(one.args) != 2 or [word.arg for word in one.keywords] != ["p"] for one in calls):
        return None
    changes: dict[ast.AST, str] = {}
    for call in calls:
        one, other = map(code.operand, call.args)
        changes[call] = f"({one}[..., :, None, :] - {other}[..., None, :, :]).abs().sum(-1)"
    is_one = all(getattr(call.keywords[0].value, "value", None) == 1 for call in calls)
    return code.replace(changes) if is_one else None


PART = AdviceRule(NAME, 340, lines=find)

"""Host reads told apart, so that each is spoken of by one rule alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.census import CensusPlace

SEVERAL = 3  # values of one function from which on reading them one by one is spoken of
_VALUES = re.compile(r"\.item\(|\b(float|int|print)\(|\.format\(|\bf['\"]|['\"].*%[\d.]*[gdfes]")
_CONDITION = re.compile(r"(if|elif|while)\b")
# operators and methods that bring one value over
_NUMBERS = ("aten::_local_scalar_dense", "aten::item", "format", "repr")
_MATCHER = re.compile(r"match|hungarian|assign", re.IGNORECASE)


@dataclass
class SortedReads:
    """Places at which the host waits for a value or a copy of the device's, by what they are for."""

    checks: list[CensusPlace] = field(default_factory=list)  # that raise if something is wrong
    matchers: list[CensusPlace] = field(default_factory=list)  # costs on their way to an assignment
    values: list[CensusPlace] = field(default_factory=list)  # several numbers, one by one
    others: list[CensusPlace] = field(default_factory=list)


def sort_reads(case: LineCase) -> SortedReads:
    """All reads and copies but those of backward, whose lines are autograd's own."""
    found = SortedReads()
    busy = {(row.where.file, row.where.function) for row in case.places("launch")}
    for rows in case.by_function(case.places("read", "copy", accept=is_written)):
        left: list[CensusPlace] = []
        for row in rows:
            (found.checks if row.around == "check" else left).append(row)
        copies = [row for row in left if row.kind == "copy" and _is_matcher(row)]
        if total(copies) >= 2:
            found.matchers += copies
            left = [row for row in left if row not in copies]
        values = [row for row in left if _is_number(row) and not _CONDITION.match(row.code)]
        # a function that launches nothing waits again for nothing new, one number per call or not
        idle = (rows[0].where.file, rows[0].where.function) not in busy
        if total(values) >= SEVERAL and (idle or _are_several(values)):
            found.values += values
            left = [row for row in left if row not in values]
        found.others += left
    return found


def _is_number(row: CensusPlace) -> bool:
    """Whether a number is read, by what came over or by how the line looks; a bool is for a decision."""
    dtype = row.facts.get("dtype", "bool")
    one = row.facts.get("shape") == "1" if row.kind == "copy" else row.what in _NUMBERS
    return (one and dtype != "bool") or bool(_VALUES.search(row.code))


def _are_several(rows: Sequence[CensusPlace]) -> bool:
    """Whether a call reads more than one, or it is a function for one of them, called for each."""
    lines = {row.where.line for row in rows}
    return len(lines) > 1 or any(row.in_call > 1 or row.code.startswith("return ") for row in rows)


def is_written(place: CensusPlace) -> bool:
    """Whether somebody wrote the operator at this line: in backward autograd chooses them."""
    return place.phase != "backward" and bool(place.where.file)


def total(rows: Sequence[CensusPlace]) -> float:
    """How often per step."""
    return sum(row.count for row in rows)


def count_calls(rows: Sequence[CensusPlace]) -> float:
    """How often per step their function was called, at least: by the operator of a line that ran most."""
    calls: dict[tuple[object, str], dict[int, float]] = {}
    steps = {step for row in rows for step in row.steps}
    for row in rows:  # sizes that differ are rows of their own: in one call, or from step to step
        by_step = calls.setdefault((row.where, row.what), {})
        each = row.count * len(steps) / len(row.steps) / max(row.in_call, 1)
        by_step |= {step: max(each, by_step.get(step, 0.0)) for step in row.steps}
    return max((sum(by_step.values()) / len(steps) for by_step in calls.values()), default=0.0)


def tell_times(count: float) -> str:
    """`once`, `twice`, `13 times`."""
    return {1.0: "once", 2.0: "twice"}.get(count, f"{count:.3g} times")


def name_place(row: CensusPlace) -> str:
    """The function as it is called, without what it is nested in."""
    name = row.where.function.rpartition("<locals>.")[2] or row.where.function
    return row.where.file if name == "<module>" else name


def _is_matcher(row: CensusPlace) -> bool:
    return bool(_MATCHER.search(f"{row.where.function} {row.where.file} {row.code}"))

"""Values that the host waits for and that no rule of its own speaks of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.advice.rules.lines.waits._reads import name_place, sort_reads, tell_times, total
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.census import CensusPlace
from detscope.analyze.findings.diffs import Code, name_called
from detscope.analyze.findings.finding import Finding

NAME = "host_reads"
_SUMS = ("sum", "mean", "amax", "amin")  # methods whose result is one tensor
# how a line looks that reads, and what does the same without; the first that fits
_SHAPES = (
    (
        re.compile(r"(?<![\w.])(max|min)\("),
        "Python's max() and min() compare on the host: tensor.clamp(min=...) does so on the device",
    ),
    (
        # `x.item() if isinstance(x, Tensor) else x` reads x, and branches by what the host knows
        re.compile(
            r"^(if|elif|while)\b|\bif\b(?! (isinstance|hasattr|torch\.is_tensor)\b|.* is (not )?None)"
            r".*\belse\b|^(and|or|not)\b"
        ),
        "do without the branch: what it computes can run always (torch.where, a product with the mask, a"
        " denominator clamped to 1), or let the host decide by what it knows, such as counts of boxes",
    ),
    (
        re.compile(r"\b(zeros|ones|full|empty|arange|range|linspace|new_\w+|expand|repeat\w*)\("),
        "take sizes and numbers from what the host knows (shapes, lengths of lists, attributes kept as Python"
        " numbers) in the place of reading them from the device",
    ),
    (
        re.compile(r"\.(cpu|numpy|tolist)\(|\bto\("),
        "copy once, after the step's work is launched, or with non_blocking=True into pinned memory and look"
        " at it a step later",
    ),
    (
        re.compile(r"\b(int|float)\([\w.]+\[[^\]]+\]\)|\w\[[^\]]+\]\.item\("),
        "read all elements at once before the loop that takes them: values = tensor.tolist(), then values[i]",
    ),
    (
        re.compile(r"\.item\(|\b(float|int)\("),
        "keep it a tensor: one can divide by a number of the device and multiply with it as it is; for a log,"
        " read it every n-th step only",
    ),
)
_WRITTEN = (
    "what is written into lies on the host: make it where the values are (device=values.device, or new_zeros"
    " of them); what the host needs, copy once"
)
_OTHERWISE = "keep the value on the device until after the step, or take it from what the host knows"


def find(case: LineCase) -> Iterable[Finding]:
    """By function, with what does the same on the device."""
    for rows in case.by_function(sort_reads(case).others):
        reads = total(rows)
        changes = list(dict.fromkeys(map(suggest_change, sorted(rows, key=lambda row: -row.count))))
        yield case.make_finding(
            NAME,
            rows,
            f"the host waits {tell_times(reads)} per step for values of the device in {name_place(rows[0])}",
            "; ".join(changes[:2]),
            text=", ".join(sorted({f"{row.what} in line {row.where.line}" for row in rows})[:6]),
            diff=case.write_diff(rows, _rewrite),
        )


def _rewrite(code: Code) -> list[str] | None:
    """`max(tensor.sum(), 1)` of Python's, clamped on the device."""
    calls = [one for one in code.find_calls("max", "min") if isinstance(one.func, ast.Name)]
    if len(calls) != 1 or len(calls[0].args) != 2 or calls[0].keywords:
        return None
    tensor, number = calls[0].args
    is_sum = isinstance(tensor, ast.Call) and name_called(tensor) in _SUMS and not tensor.args
    if not is_sum or not (isinstance(number, ast.Constant) and isinstance(number.value, int | float)):
        return None
    end = {"max": "min", "min": "max"}[name_called(calls[0])]
    return code.replace({calls[0]: f"{code.text(tensor)}.clamp({end}={code.text(number)})"})


def suggest_change(row: CensusPlace) -> str:
    """What does the same without the read, by how the line looks."""
    if row.what == "aten::copy_":
        return _WRITTEN
    return next((change for shape, change in _SHAPES if shape.search(row.code)), _OTHERWISE)


PART = AdviceRule(NAME, 390, lines=find)

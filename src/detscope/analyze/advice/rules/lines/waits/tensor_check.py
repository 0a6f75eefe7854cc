"""Checks that look at values on the device: the host waits to learn that nothing is wrong."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.advice.rules.lines.waits._reads import is_written, name_place, sort_reads, total
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.diffs import Code, name_called
from detscope.analyze.findings.finding import Finding

NAME = "tensor_check"


def find(case: LineCase) -> Iterable[Finding]:
    """The checks of a function, with the comparisons that are made for them alone."""
    launches = case.places("launch", accept=is_written)
    for rows in case.by_function(sort_reads(case).checks):
        lines = {row.where for row in rows}
        comparisons = [row for row in launches if row.where in lines and row.phase == rows[0].phase]
        reads, many = total(rows), len(lines) > 1
        yield case.make_finding(
            NAME,
            [*rows, *comparisons],
            f"{reads:g} of {case.census.waits:g} waits of the host in a step are"
            f" {f'{len(lines)} checks' if many else 'a check'} in {name_place(rows[0])}:"
            f" each waits for the device to learn that nothing is wrong",
            f"leave {'the checks' if many else 'the check'} out, or behind a flag for debugging; or look at"
            " the values where they are made, in the data set; torch._assert_async(condition) looks on the"
            " device and does not wait. Results do not change",
            text=f"{reads:g} reads and {total(comparisons):g} operators per step at lines of an assert or of"
            " an if that raises; all of them go with the check",
            diff=case.write_diff(rows, _rewrite),
        )


def _rewrite(code: Code) -> list[str] | None:
    """`assert x.all()`, or an `if` that does nothing but raise, looked at on the device."""
    check = code.tree
    if isinstance(check, ast.Assert):
        test, told, is_wrong = check.test, check.msg, False
    elif isinstance(check, ast.If) and not check.orelse and isinstance(check.body[0], ast.Raise):
        raised = check.body[0].exc
        test, is_wrong = check.test, True
        told = raised.args[0] if isinstance(raised, ast.Call) and raised.args else None
    else:
        return None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, is_wrong = test.operand, not is_wrong
    if not (code.has_torch and isinstance(test, ast.Call) and _is_of_tensor(test)):
        return None
    words = f", {code.text(told)}" if isinstance(told, ast.Constant) and isinstance(told.value, str) else ""
    condition = code.text(test) + ".logical_not()" * is_wrong
    return code.replace({check: f"torch._assert_async({condition}{words})"})


def _is_of_tensor(test: ast.Call) -> bool:
    """Whether it is `x.all()` or `torch.all(x)`: of these it is known that they give one tensor."""
    if name_called(test) not in ("all", "any") or not isinstance(test.func, ast.Attribute) or test.keywords:
        return False
    return len(test.args) == int(ast.unparse(test.func.value) == "torch")


PART = AdviceRule(NAME, 300, lines=find)

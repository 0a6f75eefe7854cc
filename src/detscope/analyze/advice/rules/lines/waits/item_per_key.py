"""Numbers that are read from the device one by one, as for a log line."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.advice.rules.lines.waits._reads import count_calls, name_place, sort_reads, total
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.diffs import Code
from detscope.analyze.findings.finding import Finding

NAME = "item_per_key"
_BY_KEY = re.compile(r"\{(\w+): (\w+)\.item\(\) for \(?\1, \2\)? in ([\w.]+)\.items\(\)\}")


def find(case: LineCase) -> Iterable[Finding]:
    """Functions that read several numbers, each with a wait of its own."""
    for rows in case.by_function(sort_reads(case).values):
        reads = total(rows)
        alone = all(row.in_call == 1 for row in rows)  # a function for one number, called for each
        calls = 1 if alone else math.ceil(count_calls(rows) - 1e-6)
        yield case.make_finding(
            NAME,
            rows,
            f"{reads:g} numbers per step are read from the device one by one in {name_place(rows[0])}:"
            f" {reads:g} waits where {calls} would do",
            "read them together: torch.stack(list(values)).tolist() waits once; for a log, keep the tensors"
            " and read them every n-th step only",
            waits=reads - calls,
            text=f"{reads:g} reads per step, {max(row.in_call for row in rows)} or fewer at one line in one"
            f" call; {calls} would be left",
            diff=case.write_diff(rows, _rewrite),
        )


def _rewrite(code: Code) -> list[str] | None:
    """`{name: value.item() for name, value in values.items()}` with one copy for all."""
    found = [one for one in ast.walk(code.tree) if isinstance(one, ast.DictComp)]
    match = _BY_KEY.fullmatch(ast.unparse(found[0])) if len(found) == 1 and code.has_torch else None
    if match is None:
        return None
    value, values = match[2], match[3]
    numbers = f"torch.stack([{value}.detach().reshape(()) for {value} in {values}.values()]).tolist()"
    return code.replace({found[0]: f"dict(zip({values}, {numbers}, strict=True))"})


PART = AdviceRule(NAME, 302, lines=find)

"""Costs of a matcher that go to the host layer by layer, or image by image."""

from __future__ import annotations

from collections.abc import Iterable

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.advice.rules.lines.waits._reads import (
    count_calls,
    name_place,
    sort_reads,
    tell_times,
    total,
)
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.finding import Finding

NAME = "matcher_copy"


def find(case: LineCase) -> Iterable[Finding]:
    """Matchers that copy to the host more than once in a step."""
    for rows in case.by_function(sort_reads(case).matchers):
        copies, calls = total(rows), count_calls(rows)
        once = "once per call (layer)" if calls == copies else f"in {calls:g} call{'s' * (calls != 1)}"
        yield case.make_finding(
            NAME,
            rows,
            f"{name_place(rows[0])} copies to the host {tell_times(copies)} per step, {once}:"
            " one copy for all would wait once",
            "compute the costs of all layers and images first, put them into one tensor and copy that once;"
            " then assign. Or keep the copies, but begin all of them before the first is used:"
            " non_blocking=True into pinned memory",
            waits=copies - 1,
            text=f"shapes {', '.join(sorted({row.facts.get('shape', '?') for row in rows}))}",
        )


PART = AdviceRule(NAME, 312, lines=find)

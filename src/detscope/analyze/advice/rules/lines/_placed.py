"""Findings whose place in the code is known from elsewhere than from where operators were called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from detscope.analyze.findings.finding import Finding, make_id
from detscope.analyze.step.beside import CodePlace


def put_at(finding: Finding, calls: Sequence[Mapping[str, Any]]) -> Finding:
    """The same finding at these calls, as the census wrote them down."""
    where = tuple(
        CodePlace(function=str(one["function"]), file=str(one["file"]), line=int(one["line"]))
        for one in calls
    )
    code = str(calls[0]["code"]) if calls else None
    return msgspec.structs.replace(
        finding, id=make_id(finding.rule, where), where=where, called_from=None, code=code
    )


def without_cost(finding: Finding, why: str) -> Finding:
    """The same, where what it costs here cannot be measured."""
    return msgspec.structs.replace(
        finding, cost_ms=None, cost_low_ms=None, cost_high_ms=None, cannot_tell=why
    )

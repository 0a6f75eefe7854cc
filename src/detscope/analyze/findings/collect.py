"""All findings of a run: rules that look at lines first, then advice that has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from detscope.analyze.advice.case import Advice, AdviceRule, Case
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.census import CensusFigures
from detscope.analyze.findings.finding import Finding, FindingEvidence, make_id
from detscope.parts import parts_of


def find_at_lines(case: Case, census: CensusFigures | None, info: Mapping[str, Any]) -> list[Finding]:
    """What rules find in the census, by what it would cost on a device."""
    if census is None:
        return []
    facts = dict((info.get("census") or {}).get("facts") or {})
    line_case = LineCase(case, census, facts)
    found = [
        msgspec.structs.replace(finding, rule=rule.name)
        for rule in parts_of("advice", AdviceRule)
        if rule.lines is not None
        for finding in rule.lines(line_case)
    ]
    return sorted(found, key=lambda one: -(one.on_device.ms if one.on_device is not None else 0.0))


def add_advice(found: Iterable[Finding], advice: Iterable[Advice], clock: Any) -> tuple[Finding, ...]:
    """Findings at lines, then what was advised on the whole run, unless a line says the same."""
    at_lines = list(found)
    told = {finding.rule for finding in at_lines}
    return (*at_lines, *(_as_finding(one, clock) for one in advice if one.rule not in told))


def _as_finding(advice: Advice, clock: Any) -> Finding:
    return Finding(
        id=make_id(advice.rule, ()),
        rule=advice.rule,
        claim=advice.title,
        evidence=FindingEvidence(table="steps", rows=0, steps=(), text=advice.evidence),
        cost_ms=advice.gain_ms,
        clock=clock,
        confidence="possible",
        change=advice.how or advice.title,
        verify=advice.command,
    )

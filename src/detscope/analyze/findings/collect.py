"""All findings of a run as one list: what rules found at lines, and advice on the whole run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from detscope.analyze.advice.case import Advice, AdviceRule, Case
from detscope.analyze.figure import Clock
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.census import CensusFigures
from detscope.analyze.findings.diffs import read_statement
from detscope.analyze.findings.finding import (
    Confidence,
    Finding,
    FindingEvidence,
    estimate_device,
    make_id,
)
from detscope.analyze.step.beside import CodePlace
from detscope.parts import parts_of

MOST_PLACES = 12  # lines that a finding lists; how many more there are is told
# A line below both is of little use to anybody: advice on the whole run, which is never below 1 % of the
# step, comes before it. 0.02 ms is less than one wait.
SMALL_ON_DEVICE_MS = 0.02
SMALL_SHARE = 0.005  # of the step here
_SURENESS: tuple[Confidence | None, ...] = ("certain", "likely", "possible", None)
# What findings count for when they are put in order: launches may hide behind the queue.
_SURE: dict[Confidence | None, float] = {"certain": 1.0, "likely": 0.4, "possible": 0.1, None: 0.1}


def find_at_lines(case: Case, census: CensusFigures | None, info: Mapping[str, Any]) -> list[Finding]:
    """What rules find in the census; of one rule and function there is one finding."""
    if census is None:
        return []
    kept = info.get("census") or {}
    statements = {name: read_statement(one) for name, one in (kept.get("statements") or {}).items()}
    known_statements = {name: one for name, one in statements.items() if one is not None}
    line_case = LineCase(case, census, dict(kept.get("facts") or {}), known_statements)
    found: dict[str, Finding] = {}
    for rule in parts_of("advice", AdviceRule):
        for finding in rule.lines(line_case) if rule.lines is not None else ():
            known = make_id(rule.name, finding.where)
            claim = finding.claim.rstrip(".")  # it is put into sentences
            named = msgspec.structs.replace(finding, id=known, rule=rule.name, claim=claim)
            found[known] = _join_findings(found[known], named) if known in found else named
    return [_bound_places(_tell_command(one)) for one in found.values()]


def add_advice(
    at_lines: Sequence[Finding], advice: Iterable[Advice], clock: Clock, step_ms: float | None
) -> tuple[Finding, ...]:
    """One list: lines by their cost on a device, advice on time, lines that cost little, advice on memory.

    What a rule found at a line it does not say once more of the whole run.
    """
    told = {finding.rule for finding in at_lines}
    whole = [one for one in advice if one.worth and one.rule not in told]
    ordered = sorted(at_lines, key=lambda one: (-_expected_ms(one), -(one.cost_ms or 0.0)))
    return (
        *(one for one in ordered if not _is_small(one, step_ms)),
        *(_as_finding(one, clock) for one in whole if one.about == "time"),
        *(one for one in ordered if _is_small(one, step_ms)),
        *(_as_finding(one, clock) for one in whole if one.about == "memory"),
    )


def _expected_ms(finding: Finding) -> float:
    """What a change would save on a device, by how sure that is."""
    return finding.device_ms * _SURE[finding.confidence]


def _is_small(finding: Finding, step_ms: float | None) -> bool:
    """Whether it costs next to nothing, here and on a device; what is not known is not small."""
    if finding.on_device is None or finding.cost_ms is None:
        return False
    return finding.device_ms < SMALL_ON_DEVICE_MS and finding.cost_ms < SMALL_SHARE * (step_ms or 0.0)


def _join_findings(one: Finding, other: Finding) -> Finding:
    """Two findings of one rule about one function: the words of the larger, the costs of both."""
    first, second = sorted((one, other), key=lambda finding: -finding.device_ms)
    if one.on_device is None or other.on_device is None:
        on_device = one.on_device or other.on_device
    else:
        waits, launches, size = (
            getattr(one.on_device, name) + getattr(other.on_device, name)
            for name in ("waits", "launches", "bytes")
        )
        on_device = estimate_device(waits, launches, size)
    return msgspec.structs.replace(
        first,
        where=tuple(dict.fromkeys((*first.where, *second.where))),
        evidence=msgspec.structs.replace(
            first.evidence,
            rows=(first.evidence.rows or 0) + (second.evidence.rows or 0),
            steps=tuple(sorted({*first.evidence.steps, *second.evidence.steps})),
        ),
        cost_ms=_add(first.cost_ms, second.cost_ms),
        cost_low_ms=_add(first.cost_low_ms, second.cost_low_ms),
        cost_high_ms=_add(first.cost_high_ms, second.cost_high_ms),
        on_device=on_device,
        confidence=max((one.confidence, other.confidence), key=_SURENESS.index),
        cannot_tell=first.cannot_tell or second.cannot_tell,
        diff=first.diff if first.diff == second.diff else None,
    )


def _add(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _tell_command(finding: Finding) -> Finding:
    """A finding with a diff of its own is tried by its name."""
    if finding.diff is None or not finding.verify:
        return finding
    own = finding.verify.replace("--patch CHANGE.diff", f"--finding {finding.id}")
    return msgspec.structs.replace(finding, verify=own)


def _bound_places(finding: Finding) -> Finding:
    """The first lines; one that is listed twice, for what it does, is one."""
    places: tuple[CodePlace, ...] = tuple(dict.fromkeys(finding.where))
    return msgspec.structs.replace(
        finding, where=places[:MOST_PLACES], more_places=max(0, len(places) - MOST_PLACES)
    )


def _as_finding(advice: Advice, clock: Clock) -> Finding:
    table, rule = "steps", advice.rule
    if advice.about == "memory":
        table, rule = "memory", f"memory.{advice.rule}"  # a rule on time may have the same name
    return Finding(
        id=make_id(rule, ()),
        rule=rule,
        claim=advice.title,
        evidence=FindingEvidence(table=table, rows=None, steps=(), text=advice.evidence),
        cost_ms=advice.gain_ms,
        clock=clock,
        saves_bytes=advice.saves_bytes if advice.measured_bytes is None else advice.measured_bytes,
        confidence="possible",
        change=advice.how or advice.title,
        verify=advice.command,
    )

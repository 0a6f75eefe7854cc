"""Fewer parameter groups, where an optimizer has one for every parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from detscope.analyze.advice.case import Advice, AdviceRule, Case
from detscope.analyze.advice.rules.lines._optimizer import (
    count_device_launches,
    find_step_lines,
    tell_ways,
)
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.finding import Finding

if TYPE_CHECKING:
    from detscope.analyze.summary import OptimizerFacts

LEAST_SHARE = 0.05  # of the optimizer in the step
LEAST_GROUPS = 10
# microseconds of one more group with one small tensor, AdamW on a processor: 10 tensor by tensor, 16 fused,
# 40 by foreach (200 groups against one, torch 2.15)
_GROUP_US = {"loop": 10.0, "fused": 16.0, "foreach": 40.0}


def advise(case: Case) -> Advice | None:
    """What an optimizer does once per group it does for every parameter."""
    share = case.phases.get("optimizer", 0.0)
    row = _find_split(case)
    if row is None or share < LEAST_SHARE or not case.step_ms:
        return None
    groups, different = row.groups or 0, row.different_groups or 0
    each_us = _GROUP_US.get(row.way or "", min(_GROUP_US.values()))
    saved_ms = min((groups - different) * each_us / 1e3, share * case.step_ms * (1 - different / groups))
    settings = "the same settings" if different == 1 else f"{different} different settings"
    return case.suggest_change(
        f"{different} parameter group{'s' * (different != 1)} instead of {groups}",
        f"{row.name} has {groups} groups for {row.tensors} tensors, with {settings} among them, and takes"
        f" {share:.0%} of the step: it begins anew for every group, and does nothing for many at once.",
        saved_ms / case.step_ms,
        f"a group costs {each_us:.0f} µs, as where this was measured; fused=True pays more afterwards",
        in_code="put parameters with equal settings into one group:"
        ' groups.setdefault((lr, weight_decay), []).append(parameter), then a {"params": ...} for each',
    )


def _find_split(case: Case) -> OptimizerFacts | None:
    """The optimizer with most groups, of those that have many with equal settings."""
    rows = [
        row
        for row in case.summary.optimizers
        if row.groups and row.different_groups and row.groups >= max(LEAST_GROUPS, 2 * row.different_groups)
    ]
    return max(rows, key=lambda one: one.groups or 0, default=None)


def find_lines(case: LineCase) -> Iterable[Finding]:
    """Where that optimizer steps: what is done once per group is launched once per group."""
    row, found = _find_split(case.case), find_step_lines(case)
    if row is None or not found:
        return
    groups, different = row.groups or 0, row.different_groups or 0
    now, then = count_device_launches(row, groups), count_device_launches(row, different)
    counted = sum(place.count for place in found)
    yield case.make_finding(
        PART.name,
        found,
        f"{row.name} has {groups} parameter groups for {row.tensors} tensors, {different} of them different:"
        f" {counted:.0f} launches per step here; {tell_ways(row)} about {now:.0f}, with {different} about"
        f" {then:.0f}.",
        "Put parameters with equal settings into one group where the optimizer is made:"
        ' groups.setdefault((lr, weight_decay), []).append(parameter), then a {"params": ...} for each.',
        text="groups as the optimizer had them when it stepped; the cost is that of the whole update",
        waits=0,
        launches=now - then,
    )


PART = AdviceRule("parameter_groups", 95, time=advise, lines=find_lines)

"""A fused optimizer, where updating parameters takes long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from detscope.analyze.advice.case import Advice, AdviceRule, Case
from detscope.analyze.advice.rules.lines._optimizer import (
    count_device_launches,
    find_step_lines,
    tell_ways,
)
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.diffs import Code, is_given
from detscope.analyze.findings.finding import Finding

if TYPE_CHECKING:
    from detscope.analyze.summary import OptimizerFacts

LEAST_SHARE = 0.05
SPEEDUP = 2.0
LEAST_LAUNCHES = 50  # that it would save on a device
_FUSED = ("Adagrad", "Adam", "AdamW", "SGD")  # that torch has in one kernel
_WAYS = {"loop": "tensor after tensor", "foreach": "operation after operation"}


def advise(case: Case) -> Advice | None:
    """One kernel for all parameters."""
    share = case.phases.get("optimizer", 0.0)
    if not case.is_training or share < LEAST_SHARE or case.read_setting("training.fused_optimizer") is True:
        return None
    known = case.summary.optimizers
    rows = [row for row in known if row.name in _FUSED and row.way != "fused"]
    if known and not rows:
        return None
    row = max(rows, key=lambda one: one.tensors or 0, default=None)
    way = _WAYS.get(row.way or "") if row is not None else None
    who = f"The optimizer takes {share:.0%} of the step"
    return case.suggest_change(
        "fused optimizer",
        f"{who}: {row.name} updates {row.tensors:,} tensors, {way}."
        if row is not None and way is not None
        else f"{who}, parameter by parameter.",
        share * (1 - 1 / SPEEDUP),
        f"the fused one is {SPEEDUP:g} times as fast",
        {"training.fused_optimizer": True},
        "fused=True where the optimizer is made" + ("" if way is not None else ", unless it says so already"),
    )


def find_lines(case: LineCase) -> Iterable[Finding]:
    """Where an optimizer steps that could do it in one kernel."""
    rows = [row for row in case.summary.optimizers if row.way in _WAYS and row.groups and _could_do_more(row)]
    found = find_step_lines(case)
    row = max(rows, key=lambda one: one.tensors or 0, default=None)
    if row is None or not found:
        return
    is_fused = row.name in _FUSED
    better = msgspec.structs.replace(row, way="fused" if is_fused else "foreach")
    now, then = (count_device_launches(one, row.groups or 1) for one in (row, better))
    if now - then < LEAST_LAUNCHES:
        return
    counted = sum(place.count for place in found)
    asked = row.way_given and row.way == "loop"
    yield case.make_finding(
        PART.name,
        found,
        f"{row.name} updates {row.tensors} tensors {_WAYS[row.way or '']}: {counted:.0f} launches per step"
        f" here; {tell_ways(row)} about {now:.0f}, {better.way} about {then:.0f}.",
        f"{better.way}=True where the optimizer is made{', in the place of foreach=False' * bool(asked)}.",
        confidence="certain" if asked else "possible",
        text=f"the cost is that of the whole update, of which a {better.way} one saves a part",
        waits=0,
        launches=now - then,
        diff=case.write_constructor_diff([row.name or ""], _rewrite) if len(rows) == 1 and is_fused else None,
    )


def _could_do_more(row: OptimizerFacts) -> bool:
    """Whether torch has it in one kernel, or the script asks for a loop where torch has foreach."""
    return row.name in _FUSED or (row.way == "loop" and bool(row.way_given))


def _rewrite(code: Code) -> list[str] | None:
    """`fused=True` as the last argument, or in the place of `foreach`."""
    call, *others = code.find_calls(*_FUSED)
    if others or is_given(call, "fused", "capturable", "differentiable"):
        return None
    way = next((one for one in call.keywords if one.arg == "foreach"), None)
    return code.add_keyword(call, "fused=True") if way is None else code.replace({way: "fused=True"})


PART = AdviceRule("fused_optimizer", 100, time=advise, lines=find_lines)

"""A fused optimizer, where updating parameters takes long."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_SHARE = 0.05
SPEEDUP = 2.0
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


PART = AdviceRule("fused_optimizer", 100, time=advise)

"""A fused optimizer, where updating parameters takes long."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_SHARE = 0.05
SPEEDUP = 2.0


def advise(case: Case) -> Advice | None:
    """One kernel for all parameters."""
    share = case.phases.get("optimizer", 0.0)
    if not case.is_training or share < LEAST_SHARE or case.read_setting("training.fused_optimizer") is True:
        return None
    return case.suggest_change(
        "fused optimizer",
        f"The optimizer takes {share:.0%} of the step, parameter by parameter.",
        share * (1 - 1 / SPEEDUP),
        f"the fused one is {SPEEDUP:g} times as fast",
        {"training.fused_optimizer": True},
        "fused=True where the optimizer is made, unless it says so already",
    )


PART = AdviceRule("fused_optimizer", 100, time=advise)

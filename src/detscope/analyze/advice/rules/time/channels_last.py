"""Channels-last memory format, where convolutions dominate."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_SHARE = 0.30
SPEEDUP = 1.15


def advise(case: Case) -> Advice | None:
    """Convolutions in the layout the kernels want."""
    if case.read_setting("training.channels_last") is not False or not case.is_training:
        return None
    convolutions = case.operator_share("conv")
    work = case.busy_share("forward", "backward")
    share = (
        convolutions * work
        if convolutions is not None
        else case.self_share(case.modules_of_type("Conv2d", "Conv2dNormActivation"))
    )
    if share < LEAST_SHARE:
        return None
    return case.suggest_change(
        "channels-last memory format",
        f"Convolutions take {share:.0%} of the step.",
        share * (1 - 1 / SPEEDUP),
        f"they become {SPEEDUP} times as fast, which differs from device to device",
        {"training.channels_last": True},
        "model.to(memory_format=torch.channels_last), and the images likewise",
    )


PART = AdviceRule("channels_last", 60, time=advise)

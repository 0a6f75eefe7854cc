"""Half precision, where a device has fast arithmetic for it."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

SPEEDUP = 1.8


def advise(case: Case) -> Advice | None:
    """bf16 for convolutions and matrix products."""
    if not case.on_cuda or case.summary.precision != "fp32":
        return None
    heavy = case.operator_share("conv", "mm", "linear")
    work = case.phases.get("forward", 0.0) + case.phases.get("backward", 0.0)
    share = 0.6 * work if heavy is None else heavy * work
    section = "training" if case.is_training else "inference"
    return case.suggest_change(
        "bf16 instead of fp32",
        f"Convolutions and matrix products take about {share:.0%} of the step in fp32.",
        share * (1 - 1 / SPEEDUP),
        f"they become {SPEEDUP} times as fast; check the accuracy",
        {f"{section}.precision": "bf16"},
        "with torch.autocast(device, dtype=torch.bfloat16): around the forward pass"
        + (" and the loss" if case.is_training else ""),
    )


PART = AdviceRule("precision", 70, time=advise)

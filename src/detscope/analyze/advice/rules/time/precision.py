"""Half precision, where a device has fast arithmetic for it."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

SPEEDUP = 1.8
LEAST_CAPABILITY = 8  # of CUDA devices: older ones have no arithmetic for bf16


def advise(case: Case) -> Advice | None:
    """bf16 for convolutions and matrix products."""
    about = case.summary.accelerator
    capability = (about.capability if about is not None else None) or ""
    major = capability.partition(".")[0]
    if not case.on_accelerator or case.summary.precision != "fp32":
        return None
    if major.isdecimal() and int(major) < LEAST_CAPABILITY:
        return None
    needs = "" if capability else f"; a CUDA device needs capability {LEAST_CAPABILITY} or newer for it"
    heavy = case.operator_share("conv", "mm", "linear")
    work = case.busy_share("forward", "backward")
    share = 0.6 * work if heavy is None else heavy * work
    section = "training" if case.is_training else "inference"
    return case.suggest_change(
        "bf16 instead of fp32",
        f"Convolutions and matrix products take about {share:.0%} of the step in fp32.",
        share * (1 - 1 / SPEEDUP),
        f"they become {SPEEDUP} times as fast; check the accuracy{needs}",
        {f"{section}.precision": "bf16"},
        "with torch.autocast(device, dtype=torch.bfloat16): around the forward pass"
        + (" and the loss" if case.is_training else ""),
    )


PART = AdviceRule("precision", 70, time=advise)

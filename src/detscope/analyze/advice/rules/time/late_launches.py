"""Fewer or cheaper launches, where a device waits for a host that is late with them."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_IDLE = 0.05


def advise(case: Case) -> Advice | None:
    """Small kernels end before the host has launched the next."""
    share = case.idle_share("host")
    if case.summary.device_use is None or share < LEAST_IDLE:
        return None
    return case.suggest_change(
        "launch less from Python",
        f"The device stands still {share:.0%} of the time because the host is late with the next launch.",
        share / 2,
        "half of it goes where kernels are launched together",
        in_code='torch.compile(model, mode="reduce-overhead"), CUDA graphs, or a larger batch',
    )


PART = AdviceRule("late_launches", 115, time=advise)

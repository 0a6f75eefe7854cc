"""Pinned memory, where copies to the device make the host wait."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case


def advise(case: Case) -> Advice | None:
    """Copies from pinned memory run beside the computation."""
    share = case.phases.get("transfer", 0.0)
    if not case.on_accelerator or case.read_setting("training.pin_memory") is not False:
        return None
    return case.suggest_change(
        "pin the loader's memory",
        f"Copies to the device take {share:.0%} of the step and come from pageable memory.",
        share / 2,
        "pinned copies take half as long",
        {"training.pin_memory": True},
        "DataLoader(..., pin_memory=True), and .to(device, non_blocking=True)",
    )


PART = AdviceRule("pinned_memory", 40, time=advise)

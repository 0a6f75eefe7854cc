"""A larger batch, where a large part of the step does not grow with it."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_FIXED = 0.10


def advise(case: Case) -> Advice | None:
    """What is paid once per step is shared by more images."""
    fixed = case.phases.get("optimizer", 0.0) + case.phases.get("other", 0.0)
    batch = case.summary.batch_size
    if not case.is_training or not isinstance(batch, int) or fixed < LEAST_FIXED:
        return None
    return case.suggest_change(
        f"batch {2 * batch} instead of {batch}",
        f"Optimizer and loop take {fixed:.0%} of the step whatever the batch; the gain is per image.",
        fixed / 2,
        "the optimizer's time does not depend on the batch, and memory holds twice the activations",
        {"training.batch_size": 2 * batch},
        f"DataLoader(..., batch_size={2 * batch}), with a learning rate to match",
    )


PART = AdviceRule("batch_size", 50, time=advise)

"""An optimizer that keeps less state."""

from __future__ import annotations

import polars as pl

from detscope.analyze.advice.case import Advice, AdviceRule, MemoryCase
from detscope.analyze.memory.replay import resized, without


def advise(case: MemoryCase) -> Advice | None:
    """AdamW keeps two values per parameter, SGD with momentum one, SGD without none."""
    state = case.replay.where(pl.col("category") == "optimizer")
    if not state.any():
        return None
    kind = case.training.get("optimizer")
    if kind == "adamw":
        return case.suggest_saving(
            "SGD with momentum instead of AdamW: one value per parameter instead of two",
            resized(case.replay, state, 0.5),
            "another learning rate, usually more epochs",
            case.tell_how("--set training.optimizer=sgd", "torch.optim.SGD(..., momentum=0.9)"),
        )
    return case.suggest_saving(
        "SGD without momentum: no state at all",
        without(case.replay, state),
        "slower and noisier convergence; rarely worth it",
        case.tell_how("--set training.momentum=0.0", "torch.optim.SGD(...) without momentum"),
    )


PART = AdviceRule("memory.optimizer", 250, memory=advise)

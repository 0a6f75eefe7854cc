"""Channels last, where convolutions use a workspace."""

from __future__ import annotations

import polars as pl

from detscope.analyze.advice.case import Advice, AdviceRule, MemoryCase
from detscope.analyze.memory.replay import without


def advise(case: MemoryCase) -> Advice | None:
    """Channels last saves at most the convolutions' workspace; the size of tensors stays the same."""
    possible = case.is_training and not case.training.get("channels_last")
    if not possible or not case.categories.get("workspace"):
        return None
    bare = without(case.replay, case.replay.where(pl.col("category") == "workspace"))
    return case.suggest_saving(
        "channels-last layout: at most the workspace of convolutions, tensors keep their size",
        bare,
        "operators without such a kernel copy; measure the time of a step too",
        case.tell_how(
            "--set training.channels_last=true",
            "model.to(memory_format=torch.channels_last), and the images likewise",
        ),
        at_most=True,
    )


PART = AdviceRule("memory.channels_last", 280, memory=advise)

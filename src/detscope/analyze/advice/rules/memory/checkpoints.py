"""Activations that are computed again instead of kept."""

from __future__ import annotations

import polars as pl

from detscope.analyze.advice.case import Advice, AdviceRule, MemoryCase, about_ms
from detscope.analyze.memory.checkpoint import checkpointed, plan_checkpoints


def advise(case: MemoryCase) -> Advice | None:
    """Compute the parts again that hold most per millisecond."""
    if not case.is_training:
        return None
    plan = plan_checkpoints(case.replay, case.nodes, case.spans)
    if plan is None:
        return None
    shown = ", ".join(plan.paths[:3]) + (f" and {len(plan.paths) - 3} more" if len(plan.paths) > 3 else "")
    normalised = case.nodes.filter(
        pl.col("type").str.contains("BatchNorm") & ~pl.col("type").str.contains("Frozen")
    ).height
    return case.suggest_saving(
        f"activation checkpointing of {shown}",
        checkpointed(case.replay, plan.paths),
        f"{about_ms(plan.recomputed_ms)} of forward again per step"
        + ("; batch norm statistics move twice per step" if normalised else ""),
        case.tell_how("--try checkpoint", "torch.utils.checkpoint.checkpoint around each of them"),
        paths=tuple(plan.paths),
        recomputed_ms=plan.recomputed_ms,
    )


PART = AdviceRule("memory.checkpoint", 230, memory=advise)

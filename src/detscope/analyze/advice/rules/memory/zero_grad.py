"""Gradients of the step before, freed before the forward pass."""

from __future__ import annotations

import numpy as np
import polars as pl

from detscope.analyze.advice.case import Advice, AdviceRule, MemoryCase
from detscope.analyze.memory.blocks import BEFORE, NEVER
from detscope.analyze.memory.replay import Booleans, Replay, without


def advise(case: MemoryCase) -> Advice | None:
    """Gradients of the step before need not live through the forward pass."""
    gradients = case.replay.where(pl.col("category") == "gradients")
    old = gradients & (case.replay.begin_ns == BEFORE)
    if not old.any():
        return None
    kept = old & (case.replay.end_ns == NEVER)
    if kept.any():
        text = (
            "zero_grad(set_to_none=True) before the forward pass: gradients are freed, not filled with zeros"
        )
    else:
        text = "zero_grad before the forward pass instead of after it: last step's gradients go earlier"
    return case.suggest_saving(
        text,
        _freed_early(case.replay, old, kept),
        "nothing, unless gradients are accumulated over steps",
        "optimizer.zero_grad(set_to_none=True) right before model(...)",
    )


def _freed_early(replay: Replay, old: Booleans, kept: Booleans) -> Replay:
    """Old gradients end at the step's begin; where none replaces them, they begin again in backward."""
    backward = replay.where(pl.col("direction") == "backward") & (replay.begin_ns != BEFORE)
    turn_ns = int(replay.begin_ns[backward].min()) if backward.any() else replay.stop_ns
    begin_ns = np.where(kept, turn_ns, replay.begin_ns)
    replay = Replay(
        begin_ns,
        replay.end_ns,
        replay.size,
        replay.row,
        replay.original,
        replay.about,
        replay.start_ns,
        replay.stop_ns,
    )
    return without(replay, old & ~kept)


PART = AdviceRule("memory.zero_grad", 260, memory=advise)

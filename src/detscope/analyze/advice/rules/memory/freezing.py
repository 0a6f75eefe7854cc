"""A first stage that need not be trained."""

from __future__ import annotations

import numpy as np
import polars as pl

from detscope.analyze.advice.case import Advice, AdviceRule, MemoryCase, about_ms, stage_ms
from detscope.analyze.memory.blocks import BEFORE
from detscope.analyze.memory.replay import Replay, ending, forward_ends, without


def advise(case: MemoryCase) -> Advice | None:
    """The first stage with parameters, frozen: no gradients, no state, no activations kept."""
    stage = _first_trained_stage(case)
    if stage is None or not case.is_training:
        return None
    modules = case.nodes.filter(
        (pl.col("kind") == "module")
        & ((pl.col("stage") == stage) | pl.col("stage").str.starts_with(f"{stage}."))
    )["path"].to_list()
    mine = pl.col("owner").is_in(modules)
    freezing = f"requires_grad_(False) on {stage}"
    backward = about_ms(stage_ms(case.spans, stage, "backward"))
    return case.suggest_saving(
        f"freeze {stage}: its activations, gradients and optimizer state are not kept",
        _frozen(case.replay, mine),
        f"{stage} learns nothing; saves {backward} of backward per step too",
        case.tell_how("--set model.trainable_layers=0", freezing) if stage == "backbone" else freezing,
        stage=stage,
    )


def _first_trained_stage(case: MemoryCase) -> str | None:
    """The stage whose gradients' modules run first in forward: nothing before it needs a backward."""
    replay = case.replay
    trained = set(
        replay.column("owner").filter(pl.Series(replay.where(pl.col("category") == "gradients"))).to_list()
    )
    known = case.nodes.filter((pl.col("kind") == "module") & pl.col("stage").is_not_null())
    stages = {path: str(stage) for path, stage in known.select("path", "stage").iter_rows()}
    forward = np.flatnonzero(replay.where(pl.col("direction") == "forward"))
    modules = replay.column("module")
    for index in forward[np.argsort(replay.begin_ns[forward], kind="stable")]:
        module = modules[int(index)]
        if module in trained and stages.get(module):
            return stages[module].split(".")[0]
    return None


def _frozen(replay: Replay, mine: pl.Expr) -> Replay:
    kept = replay.where(mine & (pl.col("category") == "activations") & (pl.col("direction") == "forward"))
    kept &= replay.begin_ns != BEFORE
    last = np.zeros_like(kept)
    if kept.any():  # the stage's own result is read by the next stage
        last[np.flatnonzero(kept)[np.argmax(replay.begin_ns[kept])]] = True
    replay = ending(replay, kept & ~last, forward_ends(replay, kept & ~last))
    gone = replay.where(mine & pl.col("category").is_in(["gradients", "optimizer"]))
    gone |= replay.where(mine & (pl.col("direction") == "backward"))
    return without(replay, gone)


PART = AdviceRule("memory.frozen", 240, memory=advise)

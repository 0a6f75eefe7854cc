"""Advice on what lives beside the activations: optimizer state, gradients, parts that need not be trained."""

from __future__ import annotations

import numpy as np
import polars as pl

from detscope.analyze.advice.case import Advice, AdviceRule, MemoryCase, about_ms, stage_ms
from detscope.analyze.memory.blocks import BEFORE, NEVER
from detscope.analyze.memory.replay import Booleans, Replay, ending, forward_ends, resized, without


def advise_optimizer(case: MemoryCase) -> Advice | None:
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


def advise_zero_grad(case: MemoryCase) -> Advice | None:
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


def advise_freezing(case: MemoryCase) -> Advice | None:
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


PARTS = (
    AdviceRule("memory.frozen", 240, memory=advise_freezing),
    AdviceRule("memory.optimizer", 250, memory=advise_optimizer),
    AdviceRule("memory.zero_grad", 260, memory=advise_zero_grad),
)

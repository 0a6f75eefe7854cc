"""Fewer channels in the stage that holds most."""

from __future__ import annotations

import polars as pl

from detscope.analyze.advice.case import Advice, AdviceRule, MemoryCase
from detscope.analyze.memory.replay import resized

FEWER = 0.25  # share of a stage's channels the rule imagines away


def advise(case: MemoryCase) -> Advice | None:
    """A quarter fewer channels in the stage that holds most at the peak."""
    replay = case.replay
    alive = pl.DataFrame({"stage": replay.column("stage"), "bytes": replay.size}).filter(
        pl.Series(case.alive_at_peak() & replay.where(pl.col("category") == "activations"))
    )
    held_by = alive.drop_nulls("stage").group_by("stage").agg(pl.col("bytes").sum())
    stages = held_by.sort("bytes", "stage", descending=[True, False])
    if not stages.height or not stages["stage"][0]:
        return None
    stage, held = stages.row(0)
    modules = case.nodes.filter((pl.col("kind") == "module") & (pl.col("stage") == stage))["path"].to_list()
    per_step = replay.where((pl.col("stage") == stage) & pl.col("alloc_ns").is_not_null())
    weights = replay.where(
        pl.col("owner").is_in(modules) & pl.col("category").is_in(["parameters", "gradients", "optimizer"])
    )
    # activations shrink with the channels, weights with their square
    slim = resized(replay, per_step & ~weights, 1 - FEWER)
    slim = resized(slim, weights, (1 - FEWER) ** 2)
    return case.suggest_saving(
        f"{FEWER:.0%} fewer channels in {stage}, which holds {held / 1e6:.1f} MB of activations at the peak",
        slim,
        "accuracy, until it is trained again",
        "a narrower backbone, or pruning",
        stage=stage,
    )


PART = AdviceRule("memory.channels", 270, memory=advise)

"""Advice on activations: half precision, computing them again, fewer channels."""

from __future__ import annotations

import polars as pl

from detscope.analyze.advice.case import Advice, AdviceRule, MemoryCase, about_ms
from detscope.analyze.memory.checkpoint import checkpointed, plan_checkpoints
from detscope.analyze.memory.half import halved
from detscope.analyze.memory.replay import peak_of, resized

FEWER = 0.25  # share of a stage's channels the rule imagines away


def advise_half_precision(case: MemoryCase) -> Advice | None:
    """Autocast halves what dense layers make; copies of weights come on top."""
    if case.training.get("precision", case.info.get("precision")) != "fp32":
        return None
    on_cpu = str(case.info.get("device")) == "cpu"
    peak = peak_of(halved(case.replay, case.nodes))
    text = "mixed precision (bf16): outputs of dense layers are half as large, weights get a half copy"
    if peak > case.peak_bytes:
        text = (
            "mixed precision (bf16) would raise the peak: layers that give single precision again, such as"
            " frozen batch norm, are kept beside the half copies that the next layers make"
        )
    return case.suggest_saving(
        text,
        peak,
        "eight bits of mantissa; "
        + (
            "slower on CPUs without bf16 instructions, and less is saved without AVX-512"
            if on_cpu
            else f"check the {'loss' if case.is_training else 'accuracy'}"
        ),
        case.tell_how(
            "--precision bf16", "torch.autocast(device, dtype=torch.bfloat16) around the forward pass"
        ),
    )


def advise_checkpoints(case: MemoryCase) -> Advice | None:
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


def advise_fewer_channels(case: MemoryCase) -> Advice | None:
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


PARTS = (
    AdviceRule("memory.bf16", 220, memory=advise_half_precision),
    AdviceRule("memory.checkpoint", 230, memory=advise_checkpoints),
    AdviceRule("memory.channels", 270, memory=advise_fewer_channels),
)

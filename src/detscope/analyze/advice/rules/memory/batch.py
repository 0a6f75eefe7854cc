"""Advice on the batch: fewer images, and how they lie in memory."""

from __future__ import annotations

import polars as pl

from detscope.analyze.advice.case import Advice, AdviceRule, MemoryCase
from detscope.analyze.memory.replay import without


def advise_smaller_batch(case: MemoryCase) -> Advice | None:
    """Half the batch, by the slope per image."""
    if case.slope is None or case.slope.batch_size < 2:
        return None
    batch = case.slope.batch_size
    smaller = batch // 2
    per_image = case.slope.bytes_per_image
    peak = round(case.peak_bytes - per_image * (batch - smaller))
    normalised = case.is_training and _has_batch_norm(case)
    return case.suggest_saving(
        f"batch {smaller} instead of {batch}: every image holds {per_image / 1e6:.1f} MB at the peak",
        peak,
        f"{batch / smaller:.3g} times as many steps for the same images"
        + ("; batch norm sees fewer images" if normalised else ""),
        case.tell_how(f"--batch-size {smaller}", f"DataLoader(..., batch_size={smaller})"),
        bytes_per_image=per_image,
        batch_size=smaller,
    )


def _has_batch_norm(case: MemoryCase) -> bool:
    kinds = case.nodes.filter(pl.col("kind") == "module")["type"].to_list()
    return any("BatchNorm" in str(kind) and "Frozen" not in str(kind) for kind in kinds)


def advise_channels_last(case: MemoryCase) -> Advice | None:
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


PARTS = (
    AdviceRule("memory.batch", 210, memory=advise_smaller_batch),
    AdviceRule("memory.channels_last", 280, memory=advise_channels_last),
)

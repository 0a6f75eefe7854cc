"""A smaller batch, by what every image holds at the peak."""

from __future__ import annotations

import polars as pl

from detscope.analyze.advice.case import Advice, AdviceRule, MemoryCase


def advise(case: MemoryCase) -> Advice | None:
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


PART = AdviceRule("memory.batch", 210, memory=advise)

"""Memory timelines recorded elsewhere: signed changes per category, without blocks or modules."""

from __future__ import annotations

import numpy as np
import polars as pl

from detscope.analyze.memory.figures import CategoryBytes, MemoryAccount, MemoryLevels, PeakMoment

NO_MODULES = "the file tells changes by category, not who made them"
NOT_TOLD = "the file tells allocated bytes only"


def account_of_changes(changes: pl.DataFrame) -> MemoryAccount:
    """The peak and its categories; modules and tensors cannot be known from such a file."""
    ordered = changes.sort("time_ns", maintain_order=True, nulls_last=False)
    grown = pl.col("delta_bytes").clip(lower_bound=0).sum()
    device = ordered.group_by("device").agg(grown).sort("delta_bytes")["device"][-1]
    own = ordered.filter(pl.col("device").eq_missing(device))
    moments = own.group_by("time_ns", maintain_order=True).agg(pl.col("delta_bytes").sum())
    level = np.cumsum(moments["delta_bytes"].to_numpy(), dtype=np.int64)
    moment = int(np.argmax(level))
    categories = categories_at(own, moment)
    peak = int(level[moment])
    levels = MemoryLevels(
        allocated_bytes=peak,
        reserved_why=NOT_TOLD,
        fragmentation_why=NOT_TOLD,
        context_why=NOT_TOLD,
        process_why=NOT_TOLD,
    )
    return MemoryAccount(
        what=f"bytes of live tensors on {device}, from a file of changes",
        device=device,
        peak_bytes=peak,
        at=PeakMoment(index=moment, time_ns=moments["time_ns"][moment]),
        categories=tuple(CategoryBytes(name=name, bytes=size) for name, size in categories.items()),
        unknown_share=categories.get("unknown", 0) / peak if peak else None,
        modules_why=NO_MODULES,
        levels=levels,
        changes=own.height,
        moments=moments.height,
    )


def categories_at(changes: pl.DataFrame, moment: int) -> dict[str, int]:
    """Bytes of every category after a moment, moments counted from 0; changes at one time are one moment."""
    times = changes["time_ns"].unique(maintain_order=True)
    until = changes.filter(pl.col("time_ns").rle_id() <= moment) if moment < len(times) else changes
    grouped = until.group_by("category", maintain_order=True).agg(pl.col("delta_bytes").sum())
    return {str(name): int(size) for name, size in grouped.iter_rows()}

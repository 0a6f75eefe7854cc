"""How the peak grows with the batch: what every image brings, and what is there without any."""

from __future__ import annotations

from typing import Any

import polars as pl

from detscope.analyze.memory.blocks import Ledger

PER_IMAGE = ("inputs", "activations", "temporary", "workspace")


def slope_figures(ledger: Ledger, event: int, batch_size: Any) -> dict[str, Any] | None:
    """Bytes per image at a moment, and the fixed part; None where the batch is not known."""
    if not isinstance(batch_size, int) or batch_size < 1:
        return None
    alive = ledger.blocks.filter(pl.Series(ledger.alive(event)))
    variable = int(alive.filter(pl.col("category").is_in(PER_IMAGE))["bytes"].sum())
    return {
        "batch_size": batch_size,
        "bytes_per_image": variable / batch_size,
        "fixed_bytes": int(ledger.level[event]) - variable,
        "what": "inputs, activations, temporary and workspace at the peak over the batch; the rest is fixed",
    }

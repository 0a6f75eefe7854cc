"""Runs whose waits are counted: a few steps of a model under the real recorder, and what its census says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import nn

from detscope.record.recorder import Recorder

WAITS = ("read", "size", "copy")


def record_census(
    model: nn.Module,
    batches: Sequence[Any],
    step: Callable[[Any], torch.Tensor | None],
    out: Path,
    rate: float = 0.0,
) -> pl.DataFrame:
    """The census of the last step; the others are warm-up. A rate of 0 leaves the weights as they are."""
    optimizer = torch.optim.SGD(model.parameters(), rate)
    options: dict[str, Any] = {"warmup_steps": len(batches) - 1, "census_steps": 1, "telemetry_hz": 0}
    with Recorder(model, optimizer, out, census=True, **options) as recorder:
        for batch in recorder.steps(batches):
            loss = step(batch)
            if loss is not None:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    assert recorder.notes == [], recorder.notes
    return pl.read_parquet(recorder.run / "census.parquet")


def count_waits(table: pl.DataFrame, *kinds: str) -> dict[tuple[str, str], int]:
    """By function and operator: what the host waits for in a step."""
    found: Counter[tuple[str, str]] = Counter()
    for row in table.filter(pl.col("kind").is_in(kinds or WAITS)).iter_rows(named=True):
        found[row["function"].rpartition("<locals>.")[2], row["what"].rpartition("::")[2]] += row["count"]
    return dict(found)


def count_kind(table: pl.DataFrame, kind: str, *, masks: bool | None = None) -> int:
    """How many of a kind there are in a step; with or without those that a mask makes."""
    rows = table.filter(pl.col("kind") == kind)
    if masks is not None:
        rows = rows.filter(pl.col("what").str.contains("by a mask") == masks)
    return int(rows["count"].sum())

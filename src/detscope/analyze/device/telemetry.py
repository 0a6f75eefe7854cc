"""Telemetry in one line per source and metric."""

from __future__ import annotations

from typing import Any

import polars as pl


def telemetry_rows(telemetry: pl.DataFrame) -> list[dict[str, Any]]:
    """Mean and maximum of every metric."""
    sampled = telemetry.filter(pl.col("source") != "step")  # a step's own figures are shown elsewhere
    if sampled.height == 0:
        return []
    grouped = sampled.group_by("source", "metric", "unit").agg(
        pl.col("value").mean().alias("mean"), pl.col("value").max().alias("max"), pl.len().alias("n")
    )
    return grouped.sort("source", "metric").to_dicts()

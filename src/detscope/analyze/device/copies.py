"""Copies and memory sets: direction, bytes, bandwidth, and how much no kernel hid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from detscope.analyze.device.intervals import grouped_union, intersect_intervals, subtract_intervals
from detscope.analyze.device.timeline import Timeline, event_borders


def copy_rows(lines: Sequence[Timeline], steps: int) -> list[dict[str, Any]]:
    """One row per direction and kind of host memory, the longest first."""
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        for key, row in _of_one(line).items():
            total = merged.setdefault(key, dict.fromkeys(row, 0))
            for name, value in row.items():
                total[name] += value
    rows = []
    for (direction, memory), row in sorted(merged.items(), key=lambda item: -item[1]["total_ns"]):
        known_ns = row["known_ns"]
        rows.append(
            {
                "direction": direction,
                "memory": memory or None,
                "count": row["count"],
                "per_step": row["count"] / steps if steps else None,
                "bytes": row["bytes"] if known_ns else None,
                "total_ns": row["total_ns"],
                "gb_per_s": row["bytes"] / known_ns if known_ns else None,
                "busy_ns": row["busy_ns"],
                "exposed_ns": row["exposed_ns"],
            }
        )
    return rows


def _of_one(line: Timeline) -> dict[tuple[str, str], dict[str, Any]]:
    moved = line.events_of("copy", "set").with_columns(
        pl.when(pl.col("kind") == "set")
        .then(pl.lit("set"))
        .otherwise(pl.col("copy").fill_null("?"))
        .alias("to"),
        pl.col("name")
        .str.extract(r"(?i)\b(pageable|pinned)\b")
        .str.to_lowercase()
        .fill_null("")
        .alias("memory"),
    )
    if moved.height == 0:
        return {}
    moved = moved.with_columns(pl.struct("to", "memory").rank("dense").cast(pl.Int64).alias("group"))
    starts, ends = event_borders(moved)
    groups = moved["group"].to_numpy().astype(np.int64)
    inside = line.window
    busy = grouped_union(starts, ends, groups, inside)
    exposed = grouped_union(starts, ends, groups, intersect_intervals(inside, subtract_intervals(inside, line.kernels)))
    has_bytes = pl.col("bytes").is_not_null()
    sums = moved.group_by("group", "to", "memory").agg(
        pl.len().alias("count"),
        pl.col("bytes").sum().fill_null(0),
        pl.col("wall_ns").sum().alias("total_ns"),
        pl.col("wall_ns").filter(has_bytes).sum().alias("known_ns"),
    )
    return {
        (row["to"], row["memory"]): {
            "count": row["count"],
            "bytes": row["bytes"],
            "total_ns": row["total_ns"],
            "known_ns": row["known_ns"],
            "busy_ns": busy.get(row["group"], 0),
            "exposed_ns": exposed.get(row["group"], 0),
        }
        for row in sums.to_dicts()
    }


def copy_totals(lines: Sequence[Timeline]) -> dict[str, int]:
    """All copies together: busy, and busy while no kernel ran."""
    busy = exposed = count = 0
    for line in lines:
        copies = line.copies
        busy += intersect_intervals(copies, line.window).length_ns
        exposed += intersect_intervals(subtract_intervals(copies, line.kernels), line.window).length_ns
        count += line.events_of("copy").height
    return {"count": count, "busy_ns": busy, "exposed_ns": exposed}

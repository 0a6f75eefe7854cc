"""The kernel table, and which kernels use tensor cores, judged by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import polars as pl

from detscope.analyze.device.timeline import Timeline

MOST_ROWS = 200
# names of matrix instructions and their shapes: s884, h1688, s16816, i8816, tensor16x8x8, warp groups;
# "xmma" alone is no sign: such kernels exist with plain ffma instructions too
TENSOR_NAMES = (
    r"_tensorop_|_tensor\d+x\d+|warpgroupsize|[hi]mma|wgmma|gmma_|mma_sync|flash_(fwd|bwd)"
    r"|(^|[^a-z])[hsdci](884|1688|16816|16832|8816|8832)"
    r"|mfma|_MT\d+x\d+x\d+_MI\d+|igemm_\w+_gtcx"  # of AMD
)


def short_name(name: str) -> str:
    """A kernel's name without return type, template arguments and parameters."""
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    ends = [position for mark in "<(" if (position := text.find(mark)) > 0]
    return text[: min(ends)] if ends else text


def kernel_rows(lines: Sequence[Timeline], steps: int) -> list[dict[str, Any]]:
    """One row per kernel name, the longest first."""
    kernels = _all(lines)
    whole = int(kernels["wall_ns"].sum())
    grouped = (
        kernels.group_by("name")
        .agg(
            pl.len().alias("count"),
            pl.col("wall_ns").sum().alias("total_ns"),
            pl.col("wall_ns").median().alias("median_ns"),
            pl.col("wall_ns").max().alias("max_ns"),
            pl.col("communication").fill_null(False).any(),
            pl.col("operator").drop_nulls().mode().sort().first(),
            pl.col("launch_ns").null_count().alias("unlinked"),
            *(_weighted(column) for column in ("blocks_per_sm", "occupancy")),
        )
        .sort(["total_ns", "name"], descending=[True, False])
    )
    rows = grouped.head(MOST_ROWS).with_columns(
        pl.col("name").str.contains(TENSOR_NAMES).alias("tensor_cores_by_name")
    )
    return [
        {
            **row,
            "short": short_name(row["name"]),
            "share": row["total_ns"] / whole if whole else 0.0,
            "ms": row["total_ns"] / 1e6 / (steps or 1),  # per step where there are steps, else in all
            "launches": row["count"] / (steps or 1),
        }
        for row in rows.to_dicts()
    ]


def _weighted(column: str) -> pl.Expr:
    known = pl.col(column).is_not_null()
    weight = pl.col("wall_ns").filter(known)
    return ((pl.col(column).filter(known) * weight).sum() / weight.sum()).fill_nan(None).alias(column)


def launch_figures(lines: Sequence[Timeline], steps: int) -> dict[str, Any]:
    """How many kernels (per step where there are steps, else in all) and how long the middle one is."""
    kernels = _all(lines)
    middle = kernels["wall_ns"].median()
    return {
        "count": kernels.height / (steps or 1),
        "n": kernels.height,
        "median_us": float(cast(float, middle)) / 1e3 if middle is not None else None,
    }


def tensor_share_by_name(lines: Sequence[Timeline]) -> dict[str, Any]:
    """Share of kernel time in kernels whose name speaks of tensor cores; an estimate."""
    by_name = _all(lines).group_by("name").agg(pl.col("wall_ns").sum(), pl.len().alias("count"))
    whole = int(by_name["wall_ns"].sum())
    named = by_name.filter(pl.col("name").str.contains(TENSOR_NAMES))
    return {
        "value": int(named["wall_ns"].sum()) / whole if whole else None,
        "numerator_ns": int(named["wall_ns"].sum()),
        "denominator_ns": whole,
        "n": int(named["count"].sum()),
        "definition": "summed time of kernels whose names speak of tensor-core instructions, over the summed"
        " time of all kernels; an estimate by name, the pipe was not measured",
    }


def _all(lines: Sequence[Timeline]) -> pl.DataFrame:
    return pl.concat([line.kind("kernel") for line in lines])

"""Kernels by name, which of them use tensor cores, judged by their names, and estimates of how well they fill
the device, from the launch sizes that the recording tool wrote down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from detscope.analyze.device.intervals import Times, measure_overlap
from detscope.analyze.device.timeline import DeviceTimeline, event_borders
from detscope.analyze.device.utilisation import divide_safely
from detscope.analyze.figure import Figure

Floats = NDArray[np.float64]
MOST_ROWS = 200
# names of matrix instructions and their shapes: s884, h1688, s16816, i8816, tensor16x8x8, warp groups;
# "xmma" alone is no sign: such kernels exist with plain ffma instructions too
TENSOR_NAMES = (
    r"_tensorop_|_tensor\d+x\d+|warpgroupsize|[hi]mma|wgmma|gmma_|mma_sync|flash_(fwd|bwd)"
    r"|(^|[^a-z])[hsdci](884|1688|16816|16832|8816|8832)"
    r"|mfma|_MT\d+x\d+x\d+_MI\d+|igemm_\w+_gtcx"  # of AMD
)


class KernelFigures(Figure, frozen=True, kw_only=True):
    """All launches of one kernel."""

    name: str  # in full
    short: str  # without return type, template arguments and parameters
    operator: str | None  # that launches it most often
    count: int  # launches
    launches: float  # per step where there are steps, else in all
    total_ns: int  # summed
    median_ns: float | None  # None where no launch has a duration
    max_ns: int | None  # the longest
    ms: float  # per step where there are steps, else in all
    share: float  # of all kernels' summed time
    communication: bool  # of a collective operation
    unlinked: int  # launches without a launch record
    blocks_per_sm: float | None  # weighted by duration, as is occupancy
    occupancy: float | None  # per cent, estimated by the recording tool
    tensor_cores_by_name: bool  # whether its name speaks of tensor cores


class Launches(Figure, frozen=True, kw_only=True):
    """How many kernels there are and how long the middle one is."""

    count: float  # per step where there are steps, else in all
    n: int  # in all
    median_us: float | None  # length of the middle kernel


class DeviceEstimate(Figure, frozen=True, kw_only=True):
    """A share that nobody measured, with what it was made of."""

    value: float | None  # numerator over denominator
    numerator_ns: float | None  # weighted time
    denominator_ns: int  # time it is a share of
    n: int  # kernels
    coverage: float | None = None  # share of kernel time of which the file says enough
    why: str | None = None  # why there is no value
    definition: str  # how it is estimated


def shorten_name(name: str) -> str:
    """A kernel's name without return type, template arguments and parameters."""
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    ends = [position for mark in "<(" if (position := text.find(mark)) > 0]
    return text[: min(ends)] if ends else text


def kernel_figures(kernels: pl.DataFrame, steps: int) -> tuple[KernelFigures, ...]:
    """One row per kernel name, the longest first."""
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
            *(_weigh_by_duration(column) for column in ("blocks_per_sm", "occupancy")),
        )
        .sort(["total_ns", "name"], descending=[True, False])
    )
    rows = grouped.head(MOST_ROWS).with_columns(
        pl.col("name").str.contains(TENSOR_NAMES).alias("tensor_cores_by_name")
    )
    return tuple(
        KernelFigures(
            **row,
            short=shorten_name(row["name"]),
            share=row["total_ns"] / whole if whole else 0.0,
            ms=row["total_ns"] / 1e6 / (steps or 1),
            launches=row["count"] / (steps or 1),
        )
        for row in rows.to_dicts()
    )


def _weigh_by_duration(column: str) -> pl.Expr:
    known = pl.col(column).is_not_null()
    weight = pl.col("wall_ns").filter(known)
    return ((pl.col(column).filter(known) * weight).sum() / weight.sum()).fill_nan(None).alias(column)


def count_launches(kernels: pl.DataFrame, steps: int) -> Launches:
    """Kernels per step and the length of the middle one."""
    middle = cast(float | None, kernels["wall_ns"].median())
    return Launches(
        count=kernels.height / (steps or 1),
        n=kernels.height,
        median_us=middle / 1e3 if middle is not None else None,
    )


def estimate_tensor_share(kernels: pl.DataFrame) -> DeviceEstimate:
    """Share of kernel time in kernels whose name speaks of tensor cores."""
    by_name = kernels.group_by("name").agg(pl.col("wall_ns").sum(), pl.len().alias("count"))
    whole = int(by_name["wall_ns"].sum())
    named = by_name.filter(pl.col("name").str.contains(TENSOR_NAMES))
    spent = int(named["wall_ns"].sum())
    return DeviceEstimate(
        value=divide_safely(spent, whole),
        numerator_ns=spent,
        denominator_ns=whole,
        n=int(named["count"].sum()),
        definition="summed time of kernels whose names speak of tensor-core instructions, over the summed"
        " time of all kernels; an estimate by name, the pipe was not measured",
    )


def estimate_sm_efficiency(lines: Sequence[DeviceTimeline]) -> DeviceEstimate:
    """Sum over merged ranges of min(1, summed blocks per SM) x duration, over the window."""
    total, window_ns, measured_ns, kernels_ns, count = 0.0, 0, 0, 0, 0
    for line in lines:
        kernels = line.kernel_events
        known = kernels.filter(pl.col("blocks_per_sm").is_not_null())
        starts, ends = event_borders(known)
        kernels_ns += int(kernels["wall_ns"].sum())
        measured_ns += int(known["wall_ns"].sum())
        count += known.height
        window_ns += line.kernel_window.length_ns
        if known.height:
            begin, end, level = _sum_levels(starts, ends, known["blocks_per_sm"].to_numpy())
            total += float((measure_overlap(line.kernel_window, begin, end) * level).sum())
    return DeviceEstimate(
        value=total / window_ns if count and window_ns else None,
        numerator_ns=total if count else None,
        denominator_ns=window_ns,
        n=count,
        coverage=divide_safely(measured_ns, kernels_ns),
        why=None if count else "the file gives no blocks per SM for its kernels",
        definition="sum over merged ranges of min(1, blocks per SM of what runs) x duration, over the"
        " window; an estimate from launch sizes, not a measurement",
    )


def _sum_levels(starts: Times, ends: Times, weights: Floats) -> tuple[Times, Times, Floats]:
    """Stretches between neighbouring borders and the summed weight of what runs in them, at most 1."""
    borders_ns = np.concatenate([starts, ends])
    order = np.argsort(borders_ns, kind="stable")
    level = np.cumsum(np.concatenate([weights, -weights])[order])
    at = borders_ns[order]
    return at[:-1], at[1:], np.clip(level[:-1], 0.0, 1.0)


def estimate_occupancy(kernels: pl.DataFrame) -> DeviceEstimate:
    """Mean of the kernels' estimated occupancy, weighted by their duration."""
    known = kernels.filter(pl.col("occupancy").is_not_null())
    weight = int(known["wall_ns"].sum())
    summed = float((known["occupancy"] * known["wall_ns"]).sum() or 0.0) / 100
    return DeviceEstimate(
        value=divide_safely(summed, weight),
        numerator_ns=summed if weight else None,
        denominator_ns=weight,
        n=known.height,
        coverage=divide_safely(weight, int(kernels["wall_ns"].sum())),
        why=None if weight else "the file gives no occupancy for its kernels",
        definition="mean over kernels of the occupancy that the recording tool estimated from the launch,"
        " weighted by duration",
    )

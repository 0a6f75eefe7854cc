"""Estimates of how well busy time was used, from the launch sizes that the recording tool wrote down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from detscope.analyze.device.intervals import Times, measure_overlap
from detscope.analyze.device.timeline import Timeline, event_borders

Floats = NDArray[np.float64]


def weighted_cover(
    starts: Times, ends: Times, weights: Floats, most: float = 1.0
) -> tuple[Times, Times, Floats]:
    """Stretches between neighbouring borders and the summed weight of what runs in them, limited."""
    borders_ns = np.concatenate([starts, ends])
    change = np.concatenate([weights, -weights])
    order = np.argsort(borders_ns, kind="stable")
    level = np.cumsum(change[order])
    at = borders_ns[order]
    return at[:-1], at[1:], np.clip(level[:-1], 0.0, most)


def sm_efficiency(lines: Sequence[Timeline]) -> dict[str, Any]:
    """Sum over merged ranges of min(1, summed blocks per SM) x duration, over the window."""
    total, window_ns, measured_ns, kernels_ns, count = 0.0, 0, 0, 0, 0
    for line in lines:
        kernels = line.events_of("kernel")
        known = kernels.filter(pl.col("blocks_per_sm").is_not_null())
        starts, ends = event_borders(known)
        kernels_ns += int(kernels["wall_ns"].sum())
        measured_ns += int(known["wall_ns"].sum())
        count += known.height
        window_ns += line.window.length_ns
        if known.height:
            begin, end, level = weighted_cover(starts, ends, known["blocks_per_sm"].to_numpy())
            total += float((measure_overlap(line.window, begin, end) * level).sum())
    return {
        "value": total / window_ns if count and window_ns else None,
        "numerator_ns": total if count else None,
        "denominator_ns": window_ns,
        "n": count,
        "coverage": measured_ns / kernels_ns if kernels_ns else None,
        "why": None if count else "the file gives no blocks per SM for its kernels",
        "definition": "sum over merged ranges of min(1, blocks per SM of what runs) x duration, over the"
        " window; an estimate from launch sizes, not a measurement",
    }


def occupancy(lines: Sequence[Timeline]) -> dict[str, Any]:
    """Mean of the kernels' estimated occupancy, weighted by their duration."""
    kernels = pl.concat([line.events_of("kernel").select("wall_ns", "occupancy") for line in lines])
    known = kernels.filter(pl.col("occupancy").is_not_null())
    weight = int(known["wall_ns"].sum())
    summed = float((known["occupancy"] * known["wall_ns"]).sum() or 0.0) / 100
    whole = int(kernels["wall_ns"].sum())
    return {
        "value": summed / weight if weight else None,
        "numerator_ns": summed if weight else None,
        "denominator_ns": weight,
        "n": known.height,
        "coverage": weight / whole if whole else None,
        "why": None if weight else "the file gives no occupancy for its kernels",
        "definition": "mean over kernels of the occupancy that the recording tool estimated from the launch,"
        " weighted by duration",
    }

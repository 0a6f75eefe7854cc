"""Operators of the recorded window, by module and direction."""

from __future__ import annotations

import polars as pl

from detscope.analyze.figure import Figure
from detscope.analyze.step.columns import total


class OperatorFigures(Figure, frozen=True, kw_only=True):
    """An operator by module and direction, per step of the recorded window."""

    name: str  # as torch calls it
    direction: str  # forward, backward or outside of both
    module: str | None  # None: in none
    stage: str | None  # of the detector
    phase: str | None  # of the step
    count: float  # per step
    self_ms: float  # without the operators it calls
    share: float  # of all operators' self time
    device_ms: float | None  # of its kernels


def operator_figures(ops: pl.DataFrame, window_steps: int, most: int = 200) -> list[OperatorFigures]:
    """Self time per step of the window, most expensive first; equal ones by name and place."""
    if ops.height == 0:
        return []
    whole = total(ops["self_ns"])
    keys = ["name", "module", "direction", "stage", "phase"]
    grouped = (
        ops.group_by(keys)
        .agg(
            pl.col("count").sum(), pl.col("self_ns").sum(), pl.col("device_ns").sum(), pl.col("kernels").sum()
        )
        .sort(["self_ns", *keys], descending=[True, *(False for _ in keys)])
        .head(most)
    )
    has_device = ops["device_ns"].null_count() < ops.height
    return [
        OperatorFigures(
            name=row["name"],
            direction=row["direction"],
            module=row["module"],
            stage=row["stage"] or None,
            phase=row["phase"],
            count=row["count"] / window_steps,
            self_ms=row["self_ns"] / 1e6 / window_steps,
            share=row["self_ns"] / whole if whole else 0.0,
            device_ms=row["device_ns"] / 1e6 / window_steps if has_device else None,
        )
        for row in grouped.to_dicts()
    ]

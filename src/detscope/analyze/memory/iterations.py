"""Memory of every iteration, by the columns that users of older memory profilers know."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from detscope.analyze.memory.account import main_device
from detscope.analyze.memory.blocks import Ledger, Longs, Window, ledger_of, windows_of
from detscope.runs.reader import Run

Cell = int | None


@dataclass(frozen=True)
class Iterations:
    """Names of the columns and one row per iteration: epoch, iteration, then bytes (None: not known)."""

    columns: list[str]
    rows: list[list[Cell]]


def iteration_rows(run: Run) -> Iterations | None:
    """One row per step that ended; None where no blocks were recorded.

    Each figure is the category's own highest level in the iteration: they need not fall on one moment.
    """
    blocks = run.table("memory")
    if not blocks.height:
        return None
    device = main_device(run, blocks)
    ledger = ledger_of(blocks.filter(pl.col("device") == device))
    steps = run.table("steps")
    windows = [window for window in windows_of(ledger, steps) if window.mode != "unfinished"]
    epochs = dict(steps.filter(pl.col("phase") == "step").select("step", "epoch").iter_rows())
    parameters = _named(ledger, "parameters")
    gradients = _named(ledger, "gradients")
    levels = _Levels(ledger)
    reserved = run.table("memory_levels").filter(
        (pl.col("level") == "reserved") & (pl.col("device") == device)
    )
    rows: list[list[Cell]] = []
    for window in windows:
        weights = _sizes(ledger, window, "parameters", parameters)
        grads = _sizes(ledger, window, "gradients", gradients)
        rows.append(
            [
                epochs.get(window.step),
                window.step,
                *_cached(ledger, window, reserved, device),
                levels.highest(window, "activations"),
                levels.highest(window, "parameters"),
                *weights,
                levels.highest(window, "gradients"),
                *grads,
                levels.highest(window, "intermediate"),
                levels.highest(window, "optimizer"),
                levels.highest(window, "inputs"),
                levels.highest(window, "temporary"),
                levels.highest(window, "workspace"),
                levels.highest(window, "unknown"),
            ]
        )
    return Iterations(_columns(parameters, gradients), rows)


def _columns(parameters: list[str], gradients: list[str]) -> list[str]:
    return [
        "epoch",
        "iteration",
        "peak_cached",
        "current_cached",
        "total_feature_map_usage",
        "total_weight_usage",
        *parameters,
        "total_layer_weight_gradient_usage",
        *(f"{name}_grad" for name in gradients),
        "intermediate_gradients",
        "optimizer_state",
        "inputs",
        "temporary",
        "workspace",
        "unknown",
    ]


class _Levels:
    """Running sums by category; gradients inside backward are apart from other temporary blocks."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._begins = np.arange(len(ledger.level)) == ledger.begin_at[ledger.block_of]
        backward = (pl.col("category") == "temporary") & (pl.col("direction") == "backward")
        kinds = pl.when(backward).then(pl.lit("intermediate")).otherwise(pl.col("category"))
        self._kind = ledger.blocks.select(kinds.fill_null("unknown").alias("kind"))["kind"]
        self._sums: dict[str, Longs] = {}

    def highest(self, window: Window, kind: str) -> int:
        """The highest level of a category in an iteration; what it began with counts."""
        if kind not in self._sums:
            own = np.where(self._kind.eq(kind).to_numpy(), self._ledger.size, 0)[self._ledger.block_of]
            self._sums[kind] = np.cumsum(np.where(self._begins, own, -own), dtype=np.int64)
        low = max(0, window.first - 1)
        return int(self._sums[kind][low : max(window.last, low + 1)].max())


def _named(ledger: Ledger, category: str) -> list[str]:
    rows = ledger.blocks.filter((pl.col("category") == category) & pl.col("name").is_not_null())
    return [str(name) for name in rows["name"].unique(maintain_order=True).to_list()]


def _sizes(ledger: Ledger, window: Window, category: str, names: list[str]) -> list[Cell]:
    """Bytes of each named block that lived in the iteration; 0 where there was none."""
    lives = (ledger.begin_ns <= window.end_ns) & (ledger.end_ns >= window.start_ns)
    own = ledger.blocks.filter(pl.Series(lives) & (ledger.blocks["category"] == category))
    found = dict(own.group_by("name").agg(pl.col("bytes").max()).iter_rows())
    return [int(found.get(name, 0)) for name in names]


def _cached(ledger: Ledger, window: Window, reserved: pl.DataFrame, device: str) -> tuple[Cell, Cell]:
    """Highest and last level: reserved on CUDA, allocated on CPU, where nothing is cached."""
    if device == "cpu":
        low = max(0, window.first - 1)
        levels = ledger.level[low : max(window.last, low + 1)]
        return int(levels.max()), int(levels[-1])
    own = reserved.filter(pl.col("step") == window.step).sort("time_ns")["bytes"].to_list()
    return (max(own), own[-1]) if own else (None, None)

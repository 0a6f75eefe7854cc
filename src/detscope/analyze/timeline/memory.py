"""Allocated memory during a step, by category."""

from __future__ import annotations

import numpy as np
import polars as pl

from detscope.analyze.memory.account import main_device
from detscope.analyze.memory.blocks import CATEGORIES, Longs, ledger_of, peak_event, windows_of
from detscope.analyze.memory.timeline import highest_per_column, sum_levels
from detscope.analyze.timeline.figures import MemoryCurve, TimelineWindow
from detscope.runs.reader import Run

COLUMNS = 500


def read_memory_curve(run: Run, step: int | None, window: TimelineWindow) -> MemoryCurve | None:
    """By blocks where the step was recorded so; else by the changes of a file recorded elsewhere."""
    blocks = run.table("memory")
    return _curve_of_blocks(run, blocks, step) if blocks.height else _curve_of_changes(run, window)


def tell_no_memory(run: Run) -> str:
    """Why a step has no curve: the life of a block is followed in steps of their own, or nowhere."""
    steps = run.table("memory", ("step",)).drop_nulls()["step"].unique().sort().to_list()
    if steps:
        named = f"step {steps[-1]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        return f"its blocks were followed in {named} alone, because that takes time of its own"
    if run.info.get("verb") == "import":
        return "the file has no record of allocations"
    return "--memory follows its blocks, in steps of their own"


def _curve_of_blocks(run: Run, blocks: pl.DataFrame, step: int | None) -> MemoryCurve | None:
    if step is None or not (blocks["step"] == step).any():
        return None
    device = main_device(run, blocks)
    ledger = ledger_of(blocks.filter(pl.col("device") == device))
    own = next((one for one in windows_of(ledger, run.table("steps")) if one.step == step), None)
    if own is None:
        return None
    first, last = max(0, own.first - 1), max(own.last, own.first + 1)
    times = np.maximum(ledger.time_ns[first:last], own.start_ns) - own.start_ns
    chosen = _choose_moments(times, ledger.level[first:last], own.end_ns - own.start_ns)
    levels = {name: sum_levels(ledger, name)[first:last][chosen].tolist() for name in CATEGORIES}
    peak = peak_event(ledger, own.first, own.last)
    return MemoryCurve(
        device,
        times[chosen].tolist(),
        {name: values for name, values in levels.items() if any(values)},
        int(max(ledger.time_ns[peak], own.start_ns)) - own.start_ns,
        int(ledger.level[peak]),
        False,
    )


def _curve_of_changes(run: Run, window: TimelineWindow) -> MemoryCurve | None:
    changes = run.table("memory_changes").filter(pl.col("time_ns").is_not_null())
    if not changes.height:
        return None
    ordered = changes.sort("time_ns", maintain_order=True)
    grown = ordered.group_by("device").agg(pl.col("delta_bytes").clip(lower_bound=0).sum())
    device = grown.sort("delta_bytes")["device"][-1]
    own = ordered.filter(pl.col("device").eq_missing(device))
    times = own["time_ns"].to_numpy() - window.start_ns
    inside = np.flatnonzero((times >= 0) & (times <= window.end_ns - window.start_ns))
    if not len(inside):
        return None
    total = np.cumsum(own["delta_bytes"].to_numpy(), dtype=np.int64)
    chosen = inside[_choose_moments(times[inside], total[inside], window.end_ns - window.start_ns)]
    names = own["category"].unique(maintain_order=True).to_list()
    # levels count from the recording's begin, when something was allocated already: lifted above zero
    lift = max(0, -int(total.min()))
    levels = {}
    for place, name in enumerate(names):
        delta = own.select(pl.when(pl.col("category") == name).then("delta_bytes").otherwise(0)).to_series()
        level = np.cumsum(delta.to_numpy(), dtype=np.int64)[chosen] + (lift if place == 0 else 0)
        levels[str(name)] = np.maximum(level, 0).tolist()
    peak = int(inside[np.argmax(total[inside])])
    return MemoryCurve(
        str(device), times[chosen].tolist(), levels, int(times[peak]), int(total[peak]) + lift, True
    )


def _choose_moments(times: Longs, total: Longs, span_ns: int) -> Longs:
    column = np.minimum(times * COLUMNS // max(1, span_ns), COLUMNS - 1)
    return highest_per_column(column, total)

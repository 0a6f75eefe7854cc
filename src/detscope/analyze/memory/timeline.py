"""A step's memory for drawing: levels by category over time, phases, and the peak as a tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from detscope.analyze.memory.account import find_peak, main_device
from detscope.analyze.memory.blocks import CATEGORIES, Ledger, Longs, Window, ledger_of, owners, windows_of
from detscope.runs.reader import Run

COLUMNS = 1200


@dataclass(frozen=True)
class MemoryTimeline:
    """Levels by category at moments of one step; `bytes[category][i]` holds until the next moment."""

    step: int
    device: str
    ms: list[float]
    bytes: dict[str, list[int]]
    phases: list[tuple[str, float, float]]  # name, begin, end in ms
    peak_ms: float
    peak_bytes: int
    wall_ms: float


def step_timeline(run: Run, columns: int = COLUMNS) -> MemoryTimeline | None:
    """The step of the peak; of many events in one column of the picture the highest moment is kept."""
    found = _peak_of_run(run)
    if found is None:
        return None
    ledger, event, window, device = found
    span_ns = max(1, window.end_ns - window.start_ns)
    first, last = max(0, window.first - 1), max(window.last, window.first + 1)
    time_ns = np.maximum(ledger.time_ns[first:last], window.start_ns)
    total = ledger.level[first:last]
    column = np.minimum((time_ns - window.start_ns) * columns // span_ns, columns - 1)
    chosen = highest_per_column(column, total)
    levels = {name: sum_levels(ledger, name)[first:last][chosen].tolist() for name in CATEGORIES}
    at_ns = max(int(ledger.time_ns[event]), window.start_ns)
    return MemoryTimeline(
        step=window.step,
        device=device,
        ms=((time_ns[chosen] - window.start_ns) / 1e6).tolist(),
        bytes={name: values for name, values in levels.items() if any(values)},
        phases=_phases(run, ledger, window),
        peak_ms=(at_ns - window.start_ns) / 1e6,
        peak_bytes=int(ledger.level[event]),
        wall_ms=span_ns / 1e6,
    )


def _peak_of_run(run: Run) -> tuple[Ledger, int, Window, str] | None:
    blocks = run.table("memory")
    if not blocks.height:
        return None
    device = main_device(run, blocks)
    ledger = ledger_of(blocks.filter(pl.col("device") == device))
    event, window = find_peak(ledger, windows_of(ledger, run.table("steps")))
    return None if window is None else (ledger, event, window, device)


def highest_per_column(column: Longs, total: Longs) -> Longs:
    """Of each column the highest moment and its last, in time order."""
    frame = pl.DataFrame({"column": column, "total": total, "index": np.arange(len(column))})
    grouped = frame.group_by("column").agg(
        pl.col("index").sort_by("total").last().alias("highest"), pl.col("index").max().alias("last")
    )
    return np.unique(np.concatenate([grouped["highest"].to_numpy(), grouped["last"].to_numpy()]))


def sum_levels(ledger: Ledger, category: str) -> Longs:
    """What was allocated of a category after every event."""
    own = ledger.blocks["category"].eq(category).fill_null(category == "unknown").to_numpy()
    begins = np.arange(len(ledger.level)) == ledger.begin_at[ledger.block_of]
    size = np.where(own, ledger.size, 0)[ledger.block_of]
    return np.cumsum(np.where(begins, size, -size), dtype=np.int64)


def _phases(run: Run, ledger: Ledger, window: Window) -> list[tuple[str, float, float]]:
    """Phases as the trace has them; else as the events tell."""
    drawn = run.table("timeline").filter((pl.col("step") == window.step) & (pl.col("track") == "phases"))
    if drawn.height:
        rows = drawn.sort("start_ns").select("name", "start_ns", "wall_ns").iter_rows()
        return [
            (name, (start - window.start_ns) / 1e6, (start + wall - window.start_ns) / 1e6)
            for name, start, wall in rows
        ]
    return _phases_of_events(ledger, window)


def _phases_of_events(ledger: Ledger, window: Window) -> list[tuple[str, float, float]]:
    """Phases by the events in them: one lasts until the first event of another."""
    block = pl.Series(ledger.block_of[window.first : window.last])
    index = np.arange(window.first, window.last)
    begins = index == ledger.begin_at[block.to_numpy()]
    names = [
        first if begun else last
        for first, last, begun in zip(
            ledger.blocks["phase"].gather(block).to_list(),
            ledger.blocks["free_phase"].gather(block).to_list(),
            begins.tolist(),
            strict=True,
        )
    ]
    found: list[tuple[str, float]] = []
    for name, time_ns in zip(names, ledger.time_ns[window.first : window.last].tolist(), strict=True):
        if name and (not found or found[-1][0] != name):
            found.append((name, (time_ns - window.start_ns) / 1e6))
    ends = [begin for _, begin in found[1:]] + [(window.end_ns - window.start_ns) / 1e6]
    return [(name, begin, end) for (name, begin), end in zip(found, ends, strict=True)]


@dataclass(frozen=True)
class PeakTree:
    """What was alive at the peak: category > module > tensor, each in bytes."""

    step: int
    device: str
    peak_bytes: int
    leaves: list[tuple[str, str, str, int]]  # category, module, tensor, bytes; largest first


def peak_tree(run: Run) -> PeakTree | None:
    """The leaves of the treemap."""
    found = _peak_of_run(run)
    if found is None:
        return None
    ledger, event, window, device = found
    alive = owners(ledger.blocks.filter(pl.Series(ledger.alive(event)))).sort("bytes", descending=True)
    leaves = []
    for row in alive.select("category", "owner", "name", "shape", "dtype", "operator", "bytes").iter_rows():
        category, owner, name, shape, dtype, operator, size = row
        known = category if category in CATEGORIES else "unknown"
        what = (name or "").rpartition(".")[2] or (operator or "").removeprefix("aten::") or "tensor"
        short = f" {shape}" if shape else ""
        leaves.append((known, owner, what + short + (f" {dtype}" if dtype and not shape else ""), int(size)))
    return PeakTree(window.step, device, int(ledger.level[event]), leaves)

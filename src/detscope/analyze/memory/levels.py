"""Three names of memory that are never mixed: allocated, reserved, process; and loader workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from detscope.analyze.memory.blocks import Ledger, Window
from detscope.analyze.step.columns import highest

NO_CACHE = "cannot tell: CPU has no caching allocator"
NOT_READ = "cannot tell: it was not read during the run"


def level_figures(levels: pl.DataFrame, ledger: Ledger, windows: list[Window], device: str) -> dict[str, Any]:
    """Highest allocated, reserved and process bytes, each by its own name; fragmentation."""
    of_device = levels.filter(pl.col("device") == device) if device != "cpu" else levels
    return {
        "allocated_bytes": int(ledger.level[windows[0].first : windows[-1].last].max(initial=0))
        if windows
        else int(ledger.level.max(initial=0)),
        "reserved_bytes": _reserved(of_device, device),
        "fragmentation": _fragmentation(of_device, ledger, device),
        "process_bytes": _process(levels),
        "process_growth_bytes": _growth(levels),
        "workers": [
            {"pid": name.removeprefix("worker "), "bytes": _highest(levels, name)}
            for name in sorted(set(levels["level"].to_list()))
            if name.startswith("worker ")
        ],
    }


def _highest(levels: pl.DataFrame, name: str) -> int | str:
    chosen = levels.filter(pl.col("level") == name)
    return highest(chosen["bytes"]) if chosen.height else NOT_READ


def _process(levels: pl.DataFrame) -> int | str:
    """The highest reading, or what the system itself remembers as the highest."""
    remembered = levels.filter(pl.col("level") == "process_peak")
    return highest(remembered["bytes"]) if remembered.height else _highest(levels, "process")


def _reserved(levels: pl.DataFrame, device: str) -> int | str:
    return NO_CACHE if device == "cpu" else _highest(levels, "reserved")


def _growth(levels: pl.DataFrame) -> int | None:
    """How far the process rose above what it held when recording began."""
    process = levels.filter(pl.col("level") == "process").sort("time_ns")
    if process.height < 2:
        return None
    return highest(process["bytes"]) - int(process["bytes"][0])


def _fragmentation(levels: pl.DataFrame, ledger: Ledger, device: str) -> dict[str, Any] | str:
    """Reserved minus allocated at the moment it was largest, with the largest free blocks then."""
    if device == "cpu":
        return NO_CACHE
    reserved = levels.filter(pl.col("level") == "reserved").sort("time_ns").drop_nulls("time_ns")
    if not reserved.height:
        return NOT_READ
    at = np.searchsorted(ledger.time_ns, reserved["time_ns"].to_numpy(), side="right") - 1
    allocated = np.where(at >= 0, ledger.level[np.maximum(at, 0)], 0)
    gap = reserved["bytes"].to_numpy() - allocated
    worst = int(np.argmax(gap))
    moment = reserved["time_ns"][worst]
    free = levels.filter((pl.col("level") == "largest_free") & (pl.col("time_ns") == moment))
    return {
        "bytes": int(gap[worst]),
        "reserved_bytes": int(reserved["bytes"][worst]),
        "allocated_bytes": int(allocated[worst]),
        "largest_free_bytes": sorted((int(size) for size in free["bytes"].to_list()), reverse=True)[:5],
    }

"""Three names of memory that are never mixed: allocated, reserved, process; and loader workers."""

from __future__ import annotations

import numpy as np
import polars as pl

from detscope.analyze.memory.blocks import Ledger, Window
from detscope.analyze.memory.figures import Fragmentation, MemoryLevels, WorkerMemory
from detscope.analyze.step.columns import highest

NO_CACHE = "CPU has no caching allocator"
NO_CONTEXT = "a CPU has none"
NOT_READ = "it was not read during the run"
MOST_FREE_BLOCKS = 5


def memory_levels(levels: pl.DataFrame, ledger: Ledger, windows: list[Window], device: str) -> MemoryLevels:
    """Highest allocated, reserved and process bytes, each by its own name; fragmentation."""
    inside = ledger.level[windows[0].first : windows[-1].last] if windows else ledger.level
    of_device = levels.filter((pl.col("device") == device) & (device != "cpu"))
    reserved, gap = _highest_of(of_device, "reserved"), _find_fragmentation(of_device, ledger)
    beside = of_device.filter(pl.col("level") == "beside").sort("time_ns")["bytes"]
    process = _highest_of(levels, "process_peak")  # what the system itself remembers as the highest
    process = _highest_of(levels, "process") if process is None else process
    rise = levels.filter(pl.col("level") == "process").sort("time_ns")["bytes"]
    names = sorted(name for name in set(levels["level"].to_list()) if name.startswith("worker "))
    workers = tuple(
        WorkerMemory(pid=name.removeprefix("worker "), bytes=_highest_of(levels, name) or 0) for name in names
    )
    unknown = NO_CACHE if device == "cpu" else NOT_READ
    return MemoryLevels(
        allocated_bytes=int(inside.max(initial=0)),
        reserved_bytes=reserved,
        reserved_why=unknown if reserved is None else None,
        fragmentation=gap,
        fragmentation_why=unknown if gap is None else None,
        context_bytes=int(beside[0]) if len(beside) else None,
        beside_bytes=highest(beside) if len(beside) else None,
        context_why=None if len(beside) else NO_CONTEXT if device == "cpu" else NOT_READ,
        process_bytes=process,
        process_why=NOT_READ if process is None else None,
        process_growth_bytes=highest(rise) - int(rise[0]) if len(rise) > 1 else None,
        workers=workers,
    )


def _highest_of(levels: pl.DataFrame, name: str) -> int | None:
    chosen = levels.filter(pl.col("level") == name)
    return highest(chosen["bytes"]) if chosen.height else None


def _find_fragmentation(levels: pl.DataFrame, ledger: Ledger) -> Fragmentation | None:
    """Free cached memory at the moment it was most, with the largest free blocks then."""
    reserved = levels.filter(pl.col("level") == "reserved").sort("time_ns").drop_nulls("time_ns")
    if not reserved.height:
        return None
    at = np.searchsorted(ledger.time_ns, reserved["time_ns"].to_numpy(), side="right") - 1
    allocated = np.where(at >= 0, ledger.level[np.maximum(at, 0)], 0)
    gap = reserved["bytes"].to_numpy() - allocated
    worst = int(np.argmax(gap))
    moment = reserved["time_ns"][worst]
    then = levels.filter(pl.col("time_ns") == moment)
    largest = sorted(then.filter(pl.col("level") == "largest_free")["bytes"].to_list(), reverse=True)
    return Fragmentation(
        bytes=int(gap[worst]),
        share=1 - largest[0] / int(gap[worst]) if largest and gap[worst] >= largest[0] > 0 else None,
        reserved_bytes=int(reserved["bytes"][worst]),
        allocated_bytes=int(allocated[worst]),
        fragmented_bytes=_highest_of(then, "fragmented"),
        largest_free_bytes=tuple(largest[:MOST_FREE_BLOCKS]),
    )

"""Blocks of memory as a ledger: every allocation and release in time order, with the running sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

Longs = NDArray[np.int64]
BEFORE, NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer",
    "inputs",
    "activations",
    "temporary",
    "workspace",
    "unknown",
)
PER_IMAGE = ("inputs", "activations", "temporary", "workspace")  # what grows with the batch
OUTSIDE = "(outside modules)"
OWNED = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True)
class Ledger:
    """The blocks of one device and their events; `level[i]` is what was allocated after event i."""

    blocks: pl.DataFrame
    begin_ns: Longs
    end_ns: Longs
    size: Longs
    time_ns: Longs
    block_of: Longs
    level: Longs
    begin_at: Longs  # index of each block's allocation among the events
    end_at: Longs  # index of its release; beyond the last event where it was never released

    def alive(self, event: int) -> NDArray[np.bool_]:
        """Which blocks are allocated right after an event."""
        return (self.begin_at <= event) & (self.end_at > event)


@dataclass(frozen=True)
class Window:
    """A step's time and the events in it: first, and one beyond the last."""

    step: int
    mode: str
    start_ns: int
    end_ns: int
    first: int
    last: int


def ledger_of(blocks: pl.DataFrame) -> Ledger:
    """Order the lives of blocks; what was there before recording began comes first."""
    begin_ns = blocks["alloc_ns"].fill_null(BEFORE).to_numpy()
    end_ns = blocks["free_ns"].fill_null(NEVER).to_numpy()
    size = blocks["bytes"].fill_null(0).to_numpy()
    time_ns, block_of, delta = events_of(begin_ns, end_ns, size)
    begin_at = np.full(len(size), NEVER, dtype=np.int64)
    end_at = np.full(len(size), NEVER, dtype=np.int64)
    index = np.arange(len(time_ns))
    is_begin = _is_begin(block_of, len(size))
    begin_at[block_of[is_begin]] = index[is_begin]
    end_at[block_of[~is_begin]] = index[~is_begin]
    return Ledger(
        blocks, begin_ns, end_ns, size, time_ns, block_of, np.cumsum(delta, dtype=np.int64), begin_at, end_at
    )


def events_of(begin_ns: Longs, end_ns: Longs, size: Longs) -> tuple[Longs, Longs, Longs]:
    """Time, block and signed bytes of every event; at one moment releases come before allocations."""
    count = len(size)
    freed = np.flatnonzero(end_ns != NEVER)
    time_ns = np.concatenate([begin_ns, end_ns[freed]])
    block_of = np.concatenate([np.arange(count), freed])
    delta = np.concatenate([size, -size[freed]])
    # a block that lives no time at all is allocated first and released after
    momentary = end_ns[freed] == begin_ns[freed]
    rank = np.concatenate([np.ones(count, dtype=np.int64), np.where(momentary, 2, 0)])
    order = np.lexsort((block_of, rank, time_ns))
    return time_ns[order], block_of[order], delta[order]


def _is_begin(block_of: Longs, count: int) -> NDArray[np.bool_]:
    """An event is a block's begin where the block occurs for the first time."""
    first = np.full(count, NEVER, dtype=np.int64)
    np.minimum.at(first, block_of, np.arange(len(block_of)))
    return np.asarray(first[block_of] == np.arange(len(block_of)))


def windows_of(ledger: Ledger, steps: pl.DataFrame) -> list[Window]:
    """The steps that have memory events; one that never ended has the time of its events."""
    whole = steps.filter(pl.col("phase") == "step").sort("step")
    seen = set(ledger.blocks["step"].drop_nulls().unique().to_list())
    found = []
    for step, mode, start_ns, wall_ns in whole.select("step", "mode", "start_ns", "wall_ns").iter_rows():
        if step in seen:
            found.append(_window(ledger, step, mode, start_ns, start_ns + wall_ns))
    unfinished = seen - set(whole["step"].to_list())
    for step in sorted(unfinished):
        own = ledger.blocks["step"].eq(step).fill_null(False).to_numpy()
        times = np.concatenate([ledger.begin_ns[own], ledger.end_ns[own]])
        times = times[(times != BEFORE) & (times != NEVER)]
        if len(times):
            found.append(_window(ledger, step, "unfinished", int(times.min()), int(times.max())))
    return found


def _window(ledger: Ledger, step: int, mode: str, start_ns: int, end_ns: int) -> Window:
    first = int(np.searchsorted(ledger.time_ns, start_ns, side="left"))
    last = int(np.searchsorted(ledger.time_ns, end_ns, side="right"))
    return Window(step, mode, start_ns, end_ns, first, last)


def peak_event(ledger: Ledger, first: int, last: int) -> int:
    """The event after which most was allocated; the one before the window counts too."""
    low = max(0, first - 1)
    return low + int(np.argmax(ledger.level[low : max(last, low + 1)]))


def owners(blocks: pl.DataFrame) -> pl.DataFrame:
    """Blocks with `owner`: the module at work, or the one that has the parameter of that name."""
    of_name = pl.col("name").str.replace(r"(^|\.)[^.]*$", "")
    owned = pl.col("category").is_in(OWNED) & pl.col("name").is_not_null()
    return blocks.with_columns(
        pl.when(owned & (of_name != ""))
        .then(of_name)
        .otherwise(pl.coalesce("module", "stack"))  # files recorded elsewhere know the line of code only
        .fill_null(OUTSIDE)
        .replace("", "(model)")
        .alias("owner")
    )

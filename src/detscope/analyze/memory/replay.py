"""Replaying a step with changed lives and sizes: what the peak would have been."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from detscope.analyze.memory.blocks import BEFORE, NEVER, Ledger, Longs, Window, events_of, owners

Booleans = NDArray[np.bool_]


@dataclass(frozen=True)
class Replay:
    """One step's blocks: lives as arrays, and a row of `about` for each."""

    begin_ns: Longs
    end_ns: Longs
    size: Longs
    row: Longs  # index into `about`; lives added later repeat the row they came from
    original: Booleans  # False for lives a replay added
    about: pl.DataFrame
    start_ns: int
    stop_ns: int

    def column(self, name: str) -> pl.Series:
        """A column of `about`, one value per life."""
        return self.about[name].gather(pl.Series(self.row))

    def where(self, condition: pl.Expr) -> Booleans:
        """Lives whose block fulfils a condition."""
        found = self.about.select(condition.fill_null(False).alias("found"))["found"].to_numpy()
        return np.asarray(found[self.row], dtype=bool)


def replay_of(ledger: Ledger, window: Window) -> Replay:
    """The lives that touch a step, as they were."""
    touches = (ledger.begin_ns <= window.end_ns) & (ledger.end_ns >= window.start_ns)
    about = owners(ledger.blocks.filter(pl.Series(touches)))
    begin_ns, end_ns = ledger.begin_ns[touches], ledger.end_ns[touches]
    begin_ns = np.where(begin_ns < window.start_ns, BEFORE, begin_ns)
    end_ns = np.where(end_ns > window.end_ns, NEVER, end_ns)
    count = len(begin_ns)
    return Replay(
        begin_ns,
        end_ns,
        ledger.size[touches],
        np.arange(count),
        np.ones(count, dtype=bool),
        about,
        window.start_ns,
        window.end_ns,
    )


def peak_of(replay: Replay) -> int:
    """The highest sum of lives during the step."""
    _, _, delta = events_of(replay.begin_ns, replay.end_ns, replay.size)
    return int(np.cumsum(delta, dtype=np.int64).max(initial=0))


def resized(replay: Replay, chosen: Booleans, factor: float) -> Replay:
    """Chosen lives with another size."""
    return replace(replay, size=np.where(chosen, np.rint(replay.size * factor), replay.size).astype(np.int64))


def without(replay: Replay, chosen: Booleans) -> Replay:
    """Chosen lives never happened."""
    keep = ~chosen
    return replace(
        replay,
        begin_ns=replay.begin_ns[keep],
        end_ns=replay.end_ns[keep],
        size=replay.size[keep],
        row=replay.row[keep],
        original=replay.original[keep],
    )


def ending(replay: Replay, chosen: Booleans, end_ns: Longs | int) -> Replay:
    """Chosen lives end at another moment."""
    return replace(replay, end_ns=np.where(chosen, end_ns, replay.end_ns))


def added(replay: Replay, row: Longs, begin_ns: Longs, end_ns: Longs, size: Longs) -> Replay:
    """More lives, each named after a row that is there."""
    return replace(
        replay,
        begin_ns=np.concatenate([replay.begin_ns, begin_ns]),
        end_ns=np.concatenate([replay.end_ns, end_ns]),
        size=np.concatenate([replay.size, size]),
        row=np.concatenate([replay.row, row]),
        original=np.concatenate([replay.original, np.zeros(len(row), dtype=bool)]),
    )


def delayed(replay: Replay, from_ns: int, by_ns: int) -> Replay:
    """Everything from a moment on happens later: room for work that was not there."""

    def moved(times: Longs) -> Longs:
        later = (times >= from_ns) & (times != NEVER)
        return np.where(later, times + np.where(later, by_ns, 0), times)

    return replace(
        replay,
        begin_ns=moved(replay.begin_ns),
        end_ns=moved(replay.end_ns),
        stop_ns=replay.stop_ns + by_ns,
    )


def of_module(path: str) -> pl.Expr:
    """Blocks made by a module or by those below it."""
    return (pl.col("module") == path) | pl.col("module").str.starts_with(f"{path}.")


def forward_ends(replay: Replay, kept: Booleans) -> Longs:
    """When kept blocks would be released in forward if backward did not need them.

    Code such as `x = layer(x)` holds a block until the operation after it has made its output: until the
    second next block of some size is allocated.
    """
    ends = replay.end_ns.copy()
    chosen = np.flatnonzero(kept)
    if not len(chosen):
        return ends
    chosen = chosen[np.argsort(replay.begin_ns[chosen], kind="stable")]
    large = chosen[replay.size[chosen] * 16 >= replay.size[chosen].max()]
    begins = replay.begin_ns[large]
    after = np.searchsorted(begins, replay.begin_ns[chosen], side="right") + 1
    last = np.concatenate([begins, [begins[-1] + 1, begins[-1] + 1]])
    ends[chosen] = np.maximum(last[np.minimum(after, len(last) - 1)], replay.begin_ns[chosen] + 1)
    return ends

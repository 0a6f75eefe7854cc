"""What every advice rule is given, and the shape of what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from detscope.analyze.memory.replay import Booleans, Replay, peak_of


@dataclass(frozen=True)
class Case:
    """One run, as far as advice needs it."""

    replay: Replay
    peak_bytes: int
    peak_ns: int
    nodes: pl.DataFrame
    spans: pl.DataFrame
    training: dict[str, Any]
    info: dict[str, Any]
    slope: dict[str, Any] | None
    categories: dict[str, int]
    by_settings: bool  # options and settings of ours can change the run

    @property
    def trains(self) -> bool:
        """Whether the run had a backward pass."""
        return self.info.get("verb") == "train" or bool(
            self.replay.where(pl.col("direction") == "backward").any()
        )

    def how(self, option: str, in_code: str) -> str:
        """An option of the command that made the run, or the same in somebody's own code."""
        return option if self.by_settings else in_code

    def alive_at_peak(self) -> Booleans:
        """Lives that make up the peak."""
        return np.asarray((self.replay.begin_ns <= self.peak_ns) & (self.replay.end_ns > self.peak_ns))


def advice(
    case: Case, rule: str, text: str, changed: Replay | int, costs: str, how: str, **more: Any
) -> dict[str, Any]:
    """A piece of advice with the peak it would lead to, by replay or by figure."""
    peak = changed if isinstance(changed, int) else peak_of(changed)
    return {
        "rule": rule,
        "advice": text,
        "saves_bytes": case.peak_bytes - peak,
        "saves_share": (case.peak_bytes - peak) / case.peak_bytes if case.peak_bytes else 0.0,
        "peak_bytes": peak,
        "costs": costs,
        "how": how,
        **more,
    }


def stage_ms(spans: pl.DataFrame, stage: str, direction: str) -> float | None:
    """Milliseconds per step of a stage with its parts; None where no spans were recorded."""
    own = spans.filter(
        (pl.col("kind") == "stage")
        & (pl.col("direction") == direction)
        & ((pl.col("path") == stage) | pl.col("path").str.starts_with(f"{stage}."))
    )
    if not own.height:
        return None
    return float(own["total_ns"].sum()) / own["step"].n_unique() / 1e6


def about_ms(value: float | None) -> str:
    """`12.3 ms`, or that nobody knows."""
    return "cannot tell how many ms" if value is None else f"{value:.1f} ms"

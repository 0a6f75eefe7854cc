"""What the measurement itself costs: bare steps against their recorded neighbours."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from detscope.analyze.stats import bootstrap_interval


def overhead_ratio(steps: pl.DataFrame, content: Mapping[int, object] | None = None) -> dict[str, Any]:
    """Recorded over bare step time without data wait; pairs are neighbours, so that drift cancels.

    With `content` (what was in each step) a bare step is held against the nearest with the same content.
    """
    chosen = steps.filter(pl.col("mode").is_in(["recorded", "bare"])).sort("step")
    modes: dict[int, str] = {}
    work: dict[int, float] = {}
    for number, mode, phase, wall_ns in chosen.select("step", "mode", "phase", "wall_ns").iter_rows():
        modes[number] = mode
        if phase in ("step", "data"):
            work[number] = work.get(number, 0) + (wall_ns if phase == "step" else -wall_ns)
    if "bare" not in modes.values():
        return {"value": None, "ci95": None, "n": 0, "why": "no step ran bare"}
    recorded = [number for number, mode in modes.items() if mode == "recorded"]
    ratios = []
    for number, mode in modes.items():
        if mode != "bare":
            continue
        if content is None:
            beside = [work[n] for n in _nearest_recorded(number, recorded)]
        else:
            alike = [n for n in recorded if content.get(n) == content.get(number)]
            beside = [work[n] for n in sorted(alike, key=lambda n: abs(n - number))[:1]]
        if beside and work[number] > 0:
            ratios.append(sum(beside) / len(beside) / work[number])
    if not ratios:
        return {"value": None, "ci95": None, "n": 0, "why": "no bare step has a recorded neighbour"}
    values = np.asarray(ratios)
    interval = bootstrap_interval(values, lambda sample: float(np.median(sample)))
    result: dict[str, Any] = {"value": float(np.median(values)), "n": len(ratios)}
    result["ci95"] = [interval.low, interval.high] if interval else None
    if interval is None:
        result["why"] = f"{len(ratios)} bare steps; five are needed for an interval"
    return result


def _nearest_recorded(number: int, recorded: list[int]) -> list[int]:
    place = bisect(recorded, number)
    return recorded[max(0, place - 1) : place] + recorded[place : place + 1]

"""The step itself: its headline, its phases, its outliers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from detscope.analyze.stats import median_interval, percentile_or_why, robust_spread
from detscope.analyze.step.columns import mean, median, total
from detscope.analyze.step.steady import Steadiness, outlier_indices, steadiness, warmup_length

PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")


@dataclass(frozen=True)
class TypicalSteps:
    """The steps the figures are made of, and those set apart."""

    mode: str  # which kind of steps these are: "recorded", or "ops" where there are no others
    steps: list[int]  # steady and typical: shares are taken from these
    measured: list[int]  # all that were measured, outliers included: medians are taken from these
    warmup: list[int]
    outliers: list[int]
    steadiness: Steadiness
    p50_ms: float | None
    timed: list[int] = field(default_factory=list)  # measured and bare: mean and speed are taken from these


def typical_steps(steps: pl.DataFrame, find_slow_start: bool = True) -> TypicalSteps:
    """Choose the steps that count; a slow start is only looked for where all steps do the same work."""
    whole = steps.filter(pl.col("phase") == "step").sort("step")
    kinds = set(whole["mode"].to_list())
    mode = next((m for m in ("recorded", "ops", "memory", "warmup") if m in kinds), "recorded")
    warmup = whole.filter(pl.col("mode") == "warmup")["step"].to_list() if mode != "warmup" else []
    chosen = whole.filter(pl.col("mode") == mode)
    numbers, durations = chosen["step"].to_list(), [ns / 1e6 for ns in chosen["wall_ns"].to_list()]
    slow_start = warmup_length(durations) if find_slow_start else 0
    warmup = warmup + numbers[:slow_start]
    numbers, durations = numbers[slow_start:], durations[slow_start:]
    outliers = [numbers[index] for index in outlier_indices(durations)]
    apart = set(outliers)
    typical = [number for number in numbers if number not in apart]
    kept = set(numbers)
    if mode == "recorded" and numbers:
        bare = whole.filter((pl.col("mode") == "bare") & (pl.col("step") >= numbers[0]))
        kept.update(bare["step"].to_list())
    return TypicalSteps(
        mode, typical, numbers, warmup, outliers, steadiness(durations), median(durations), sorted(kept)
    )


def figures(durations: list[float]) -> dict[str, Any]:
    """Median, interval, mean, spread and the percentiles the samples support."""
    interval = median_interval(durations)
    return {
        "p50": median(durations),
        "ci95": [interval.low, interval.high] if interval else None,
        "n": len(durations),
        "mean": sum(durations) / len(durations) if durations else None,
        "spread": robust_spread(durations),
        "p95": percentile_or_why(durations, 95),
        "p99": percentile_or_why(durations, 99),
    }


def step_figures(steps: pl.DataFrame, typical: TypicalSteps) -> dict[str, Any]:
    """The headline: wall time of a step; the mean is that of all steps, bare ones as well."""
    timed = _durations(steps, "step", typical.timed)
    found = figures(_durations(steps, "step", typical.measured))
    return {**found, "mean": sum(timed) / len(timed) if timed else None, "mean_n": len(timed)}


def images_per_second(steps: pl.DataFrame, content: pl.DataFrame, typical: TypicalSteps) -> float | None:
    """Images of all timed steps over their time: what a person waits for, whichever steps were recorded."""
    images = dict(content.select("step", "images").drop_nulls().iter_rows())
    chosen = steps.filter((pl.col("phase") == "step") & pl.col("step").is_in([*images]))
    timed = chosen.filter(pl.col("step").is_in(typical.timed)).select("step", "wall_ns")
    spent_ns = total(timed["wall_ns"])
    return sum(images[step] for step in timed["step"].to_list()) / spent_ns * 1e9 if spent_ns else None


def phase_rows(steps: pl.DataFrame, typical: TypicalSteps) -> list[dict[str, Any]]:
    """Phases of a typical step: share of the time, times the median step, so that they add up to it."""
    wall = sum(_durations(steps, "step", typical.steps))
    rows = []
    for phase in PHASES:
        durations = _durations(steps, phase, typical.steps)
        share = sum(durations) / wall if wall else 0.0
        row = {"name": phase, "ms": share * (typical.p50_ms or 0.0), "share": share}
        device = steps.filter((pl.col("phase") == phase) & pl.col("step").is_in(typical.steps))["device_ns"]
        if device.null_count() < len(device):
            row["device_ms"] = (mean(device) or 0.0) / 1e6
        detail = figures(durations)
        rows.append({**row, **{key: detail[key] for key in ("p50", "ci95", "n")}})
    return rows


def outlier_rows(steps: pl.DataFrame, content: pl.DataFrame, typical: TypicalSteps) -> list[dict[str, Any]]:
    """Steps far above the median, with the phase that grew most and what was in them."""
    middle = typical.p50_ms or 0.0
    usual = {phase: median(_durations(steps, phase, typical.steps)) or 0.0 for phase in PHASES}
    times: dict[int, dict[str, float]] = {number: {} for number in typical.outliers}
    slow = steps.filter(pl.col("step").is_in(typical.outliers))
    for number, phase, wall_ns in slow.select("step", "phase", "wall_ns").iter_rows():
        times[number][phase] = times[number].get(phase, 0.0) + wall_ns / 1e6
    contents = {row["step"]: row for row in content.filter(pl.col("step").is_in(typical.outliers)).to_dicts()}
    rows = []
    for number in typical.outliers:
        duration = times[number]["step"]
        growth = {phase: times[number].get(phase, 0.0) - usual[phase] for phase in PHASES}
        phase = max(growth, key=lambda name: growth[name])
        why = f"{phase} took {growth[phase]:.1f} ms more than usual"
        inside = contents.get(number, {})
        if inside.get("first_of_epoch"):
            why += "; first step of a pass"
        if inside.get("boxes") is not None:
            why += f"; {inside['boxes']} boxes"
        rows.append(
            {
                "step": number,
                "ms": duration,
                "times_median": duration / middle if middle else None,
                "why": why,
            }
        )
    return rows


def warmup_figures(steps: pl.DataFrame, typical: TypicalSteps) -> dict[str, Any]:
    """The steps before measuring began."""
    durations = _durations(steps, "step", typical.warmup)
    first = durations[0] if durations else None
    return {"n": len(durations), "first_ms": first, "p50": median(durations)}


def _durations(steps: pl.DataFrame, phase: str, numbers: list[int]) -> list[float]:
    chosen = steps.filter((pl.col("phase") == phase) & pl.col("step").is_in(numbers)).sort("step")
    return [ns / 1e6 for ns in chosen["wall_ns"].to_list()]

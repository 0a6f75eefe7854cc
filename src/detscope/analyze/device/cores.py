"""Core utilisation from counters of single kernels: weighted by cycles, over all kernels, with coverage."""

from __future__ import annotations

from typing import Any

import polars as pl

# the first that a kernel has is its weight
CYCLES = (
    "gpc__cycles_elapsed.max",
    "sm__cycles_elapsed.max",
    "sm__cycles_elapsed.avg",
    "sm__cycles_elapsed.sum",
    "Elapsed Cycles",
)
PIPE = r"^sm__(?:inst_executed_)?pipe_(\w+?)(?:_cycles_active)?\.avg\.pct_of_peak_sustained_(elapsed|active)$"
DURATIONS = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
TENSOR_INSTRUCTIONS = "sm__inst_executed_pipe_tensor.sum"
DEFINITION = (
    "sum over kernels of cycles x per cent of peak, over the sum of cycles; coverage: share of all kernels'"
    " cycles for which the counter was measured; of_window: times GPU compute utilisation"
)


def core_figures(metrics: pl.DataFrame, compute_utilisation: float | None) -> dict[str, Any]:
    """Per pipe and per counter in per cent of peak: share of kernel time, and share of the window."""
    if metrics.height == 0:
        return {"why": "no counters of single kernels (Nsight Compute) in this run"}
    key = ["process", "device", "kernel"]
    kernels = metrics.group_by(key).agg(pl.col("name").drop_nulls().first())
    weights = _first_of(metrics, CYCLES, key).rename({"value": "cycles"})
    measured = metrics.filter((pl.col("unit") == "%") | pl.col("metric").str.contains("pct_of_peak")).join(
        weights, on=key, how="left", nulls_equal=True
    )
    whole = float(weights["cycles"].sum())
    grouped = (
        measured.group_by("metric")
        .agg(
            (pl.col("cycles") * pl.col("value")).sum().alias("weighted"),
            pl.col("cycles").filter(pl.col("value").is_not_null()).sum().alias("cycles"),
            pl.col("value").is_not_null().sum().alias("n"),
        )
        .sort("metric")
    )
    counters = {
        row["metric"]: _figure(row["weighted"], row["cycles"], whole, row["n"], compute_utilisation)
        for row in grouped.to_dicts()
    }
    names = pl.DataFrame({"metric": list(counters)}, schema={"metric": pl.String}).with_columns(
        pl.col("metric").str.extract(PIPE, 1).alias("pipe"), pl.col("metric").str.extract(PIPE, 2).alias("of")
    )
    pipes: dict[str, Any] = {}
    for row in (
        names.filter(pl.col("pipe").is_not_null()).sort("of", "metric", descending=[True, False]).to_dicts()
    ):
        pipes.setdefault(row["pipe"], {**counters[row["metric"]], "metric": row["metric"]})
    without = kernels.height - weights.height
    return {
        "kernels": kernels.height,
        "kernels_without_cycles": without,
        "cycles": whole,
        "pipes": pipes,
        "counters": counters,
        "tensor_instructions": _tensor_share(metrics, weights, key),
        "rows": _kernel_rows(metrics, kernels, weights, key),
        "definition": DEFINITION,
        "why": None if whole else "no kernel has a count of elapsed cycles",
    }


def _figure(
    weighted: float, cycles: float, whole: float, count: int, compute_utilisation: float | None
) -> dict[str, Any]:
    value = weighted / cycles / 100 if cycles else None
    return {
        "value": value,
        "of_window": value * compute_utilisation if value is not None and compute_utilisation else None,
        "coverage": cycles / whole if whole else None,
        "cycles": cycles,
        "n": count,
    }


def _first_of(metrics: pl.DataFrame, names: tuple[str, ...], key: list[str]) -> pl.DataFrame:
    """Per kernel the value of the first of these metrics that it has."""
    rank = pl.col("metric").replace_strict(list(names), list(range(len(names))), default=None)
    return (
        metrics.filter(pl.col("metric").is_in(names) & pl.col("value").is_not_null())
        .with_columns(rank.alias("order"))
        .sort("order")
        .group_by(key)
        .agg(pl.col("value").first())
    )


def _tensor_share(metrics: pl.DataFrame, weights: pl.DataFrame, key: list[str]) -> dict[str, Any] | None:
    """Cycles in kernels that executed tensor instructions at all, where only their number was counted."""
    counted = metrics.filter((pl.col("metric") == TENSOR_INSTRUCTIONS) & pl.col("value").is_not_null())
    if counted.height == 0:
        return None
    joined = counted.join(weights, on=key, how="inner", nulls_equal=True)
    using = joined.filter(pl.col("value") > 0)
    whole = float(joined["cycles"].sum())
    return {
        "value": float(using["cycles"].sum()) / whole if whole else None,
        "n": using.height,
        "of": joined.height,
        "definition": "cycles of kernels that executed at least one tensor instruction, over all cycles",
    }


def _kernel_rows(
    metrics: pl.DataFrame, kernels: pl.DataFrame, weights: pl.DataFrame, key: list[str]
) -> list[dict[str, Any]]:
    """Kernels by name: count, cycles, duration; the most cycles first."""
    durations = _first_of(metrics, DURATIONS, key).rename({"value": "duration"})
    joined = kernels.join(weights, on=key, how="left", nulls_equal=True).join(
        durations, on=key, how="left", nulls_equal=True
    )
    grouped = joined.group_by("name").agg(
        pl.len().alias("count"), pl.col("cycles").sum(), pl.col("duration").sum()
    )
    return grouped.sort(["cycles", "name"], descending=[True, False]).head(50).to_dicts()

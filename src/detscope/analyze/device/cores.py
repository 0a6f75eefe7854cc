"""Core utilisation from counters of single kernels: weighted by cycles, over all kernels, with coverage."""

from __future__ import annotations

import polars as pl

from detscope.analyze.device.utilisation import divide_safely
from detscope.analyze.figure import Figure

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
THROUGHPUTS = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput")
TENSOR_INSTRUCTIONS = "sm__inst_executed_pipe_tensor.sum"
KERNEL = ["process", "device", "kernel"]  # what tells kernels apart


class CounterFigures(Figure, frozen=True, kw_only=True):
    """A counter in per cent of its peak, over all kernels that have it."""

    name: str  # of the pipe, or of the counter itself
    metric: str  # the counter
    value: float | None  # share of its peak while kernels ran, weighted by their cycles
    of_window: float | None  # times GPU compute utilisation, where a time line is known
    coverage: float | None  # share of all kernels' cycles for which it was measured
    cycles: float  # of the kernels that have it
    n: int  # kernels that have it


class TensorInstructions(Figure, frozen=True, kw_only=True):
    """Kernels that executed tensor instructions at all, where only their number was counted."""

    value: float | None  # share of cycles
    n: int  # kernels that did
    of: int  # kernels that were counted
    definition: str = "cycles of kernels that executed at least one tensor instruction, over all cycles"


class CountedKernel(Figure, frozen=True, kw_only=True):
    """Launches of one kernel that were counted."""

    name: str | None  # what it is called
    count: int  # launches
    cycles: float  # of all of them
    duration: float  # in the listing's unit


class CoreUse(Figure, frozen=True, kw_only=True):
    """How well kernels used the cores, from counters of single kernels (Nsight Compute)."""

    kernels: int | None = None  # that were counted
    kernels_without_cycles: int | None = None  # whose weight is not known
    cycles: float | None = None  # of all kernels
    pipes: tuple[CounterFigures, ...] = ()
    counters: tuple[CounterFigures, ...] = ()
    tensor_instructions: TensorInstructions | None = None
    rows: tuple[CountedKernel, ...] = ()  # most cycles first
    definition: str = (
        "sum over kernels of cycles x per cent of peak, over the sum of cycles; coverage: share of all"
        " kernels' cycles for which the counter was measured; of_window: times GPU compute utilisation"
    )
    why: str | None = None  # why there is no share

    def find_throughput(self) -> float | None:
        """The share of its compute throughput that the device reached, where it was counted."""
        found = {counter.name: counter.value for counter in self.counters}
        return next((value for name in THROUGHPUTS if (value := found.get(name)) is not None), None)


def core_figures(metrics: pl.DataFrame, compute_utilisation: float | None) -> CoreUse:
    """Per pipe and per counter in per cent of peak: share of kernel time, and share of the window."""
    if metrics.height == 0:
        return CoreUse(why="no counters of single kernels (Nsight Compute) in this run")
    kernels = metrics.group_by(KERNEL).agg(pl.col("name").drop_nulls().first())
    weights = _first_of(metrics, CYCLES).rename({"value": "cycles"})
    in_percent = metrics.filter((pl.col("unit") == "%") | pl.col("metric").str.contains("pct_of_peak"))
    measured = in_percent.join(weights, on=KERNEL, how="left", nulls_equal=True)
    whole = float(weights["cycles"].sum())
    grouped = measured.group_by("metric").agg(
        (pl.col("cycles") * pl.col("value")).sum().alias("weighted"),
        pl.col("cycles").filter(pl.col("value").is_not_null()).sum().alias("cycles"),
        pl.col("value").is_not_null().sum().alias("n"),
    )
    of = pl.col("metric").str.extract(PIPE, 2).alias("of")
    rows = grouped.sort("metric").with_columns(pl.col("metric").str.extract(PIPE, 1).alias("pipe"), of)
    # of a pipe that was counted in both ways, what is said of elapsed cycles counts
    of_pipes = rows.filter(pl.col("pipe").is_not_null()).sort("of", "metric", descending=[True, False])
    of_pipes = of_pipes.unique("pipe", keep="first", maintain_order=True)

    def counters(chosen: pl.DataFrame, name: str) -> tuple[CounterFigures, ...]:
        found = []
        for row in chosen.to_dicts():
            value = row["weighted"] / row["cycles"] / 100 if row["cycles"] else None
            of_window = value * compute_utilisation if value is not None and compute_utilisation else None
            found.append(
                CounterFigures(
                    name=row[name],
                    metric=row["metric"],
                    value=value,
                    of_window=of_window,
                    coverage=divide_safely(row["cycles"], whole),
                    cycles=row["cycles"],
                    n=row["n"],
                )
            )
        return tuple(found)

    return CoreUse(
        kernels=kernels.height,
        kernels_without_cycles=kernels.height - weights.height,
        cycles=whole,
        pipes=counters(of_pipes, "pipe"),
        counters=counters(rows, "metric"),
        tensor_instructions=_count_tensor_kernels(metrics, weights),
        rows=_list_kernels(metrics, kernels, weights),
        why=None if whole else "no kernel has a count of elapsed cycles",
    )


def _first_of(metrics: pl.DataFrame, names: tuple[str, ...]) -> pl.DataFrame:
    """Per kernel the value of the first of these metrics that it has."""
    rank = pl.col("metric").replace_strict(list(names), list(range(len(names))), default=None)
    return (
        metrics.filter(pl.col("metric").is_in(names) & pl.col("value").is_not_null())
        .with_columns(rank.alias("order"))
        .sort("order")
        .group_by(KERNEL)
        .agg(pl.col("value").first())
    )


def _count_tensor_kernels(metrics: pl.DataFrame, weights: pl.DataFrame) -> TensorInstructions | None:
    counted = metrics.filter((pl.col("metric") == TENSOR_INSTRUCTIONS) & pl.col("value").is_not_null())
    if counted.height == 0:
        return None
    joined = counted.join(weights, on=KERNEL, how="inner", nulls_equal=True)
    using = joined.filter(pl.col("value") > 0)
    value = divide_safely(float(using["cycles"].sum()), float(joined["cycles"].sum()))
    return TensorInstructions(value=value, n=using.height, of=joined.height)


def _list_kernels(
    metrics: pl.DataFrame, kernels: pl.DataFrame, weights: pl.DataFrame
) -> tuple[CountedKernel, ...]:
    durations = _first_of(metrics, DURATIONS).rename({"value": "duration"})
    joined = kernels.join(weights, on=KERNEL, how="left", nulls_equal=True).join(
        durations, on=KERNEL, how="left", nulls_equal=True
    )
    grouped = joined.group_by("name").agg(
        pl.len().alias("count"), pl.col("cycles").sum(), pl.col("duration").sum()
    )
    most = grouped.sort(["cycles", "name"], descending=[True, False]).head(50)
    return tuple(CountedKernel(**row) for row in most.to_dicts())

"""Listings of Nsight Compute: the weighted figure is worked out here, from the rows alone."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from detscope.ingest.formats.ncu import read_listings, recognize_head
from detscope.ingest.sink import Sink

THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"


def metrics_of(path: Path) -> tuple[pl.DataFrame, Sink]:
    frames: list[pl.DataFrame] = []
    sink = Sink(lambda _table, frame: frames.append(frame))
    read_listings(path, sink)
    return pl.concat(frames), sink


def weighted(metrics: pl.DataFrame, metric: str, cycles: str) -> float:
    values = dict(metrics.filter(metric=metric).select("kernel", "value").iter_rows())
    weights = dict(metrics.filter(metric=cycles).select("kernel", "value").iter_rows())
    assert values.keys() == weights.keys()
    return sum(values[kernel] * weights[kernel] for kernel in values) / sum(weights.values())


@pytest.mark.parametrize(
    ("name", "kernels", "share"),
    [("conv2d", 1, 3.37), ("bert_attention", 26, 6.1317), ("upsample_nearest", 49, 53.4646)],
)
def test_the_cycle_weighted_throughput_counts_all_kernels(
    recorded: Path, name: str, kernels: int, share: float
) -> None:
    metrics, sink = metrics_of(recorded / f"traces/ncu/{name}.csv")
    assert sink.info["kernels"] == metrics["kernel"].n_unique() == kernels
    assert weighted(metrics, THROUGHPUT, "sm__cycles_elapsed.avg") == pytest.approx(share, abs=5e-5)


def test_a_table_without_words_about_kernels_has_one_kernel_per_line(recorded: Path) -> None:
    path = recorded / "traces/ncu/relu.csv"
    metrics, sink = metrics_of(path)
    lines = path.read_text().splitlines()
    assert len(lines) == 4238  # the header among them
    assert sink.info["kernels"] == 4237
    last = metrics.filter(kernel=4236, metric=THROUGHPUT)
    assert last["value"].to_list() == [float(lines[-1].rsplit(",", 1)[1])] == [0.6]


def test_names_of_the_details_page_are_those_of_the_counters(recorded: Path) -> None:
    metrics, _ = metrics_of(recorded / "traces/ncu/copy_blocked_details_page.csv")
    values = dict(metrics.select("metric", "value").iter_rows())
    assert values[THROUGHPUT] == 1.3
    assert values["gpc__cycles_elapsed.max"] == 12_319_469
    assert values["gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"] == 61.84
    assert values["dram__bytes.sum.per_second"] == pytest.approx(196_456_177_859.63)
    assert metrics["device"].unique().to_list() == [0]


def test_lines_before_the_header_and_rows_of_rules_are_counted(recorded: Path) -> None:
    _, sink = metrics_of(recorded / "traces/ncu/conv2d.csv")
    assert sink.counts["lines that are no part of a listing"] == 12
    assert sink.counts["rows of rules, without a metric"] == 2


def test_the_format_is_known_by_content(recorded: Path) -> None:
    for path in sorted((recorded / "traces/ncu").glob("*.csv")):
        assert recognize_head(path.read_bytes()[:65536], Path("x")), path
    other = recorded / "traces/nsys/a100_cloverleaf.gpu_trace.csv"
    assert not recognize_head(other.read_bytes()[:65536], other)

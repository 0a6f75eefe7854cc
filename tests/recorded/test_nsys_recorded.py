"""Exports of Nsight Systems, of several schema versions: figures worked out here from the rows alone."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import polars as pl
import pytest

from detscope.ingest.formats.nsys import read_export, recognize_head
from detscope.ingest.sink import Sink

ALL = ("kernel", "copy", "set")


def rows_of(path: Path) -> tuple[dict[str, pl.DataFrame], Sink]:
    frames: dict[str, list[pl.DataFrame]] = {}
    sink = Sink(lambda table, frame: frames.setdefault(table, []).append(frame))
    read_export(path, sink)
    return {table: pl.concat(parts) for table, parts in frames.items()}, sink


def union_and_span(intervals: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Length of the union and from first start to last end, the slow way."""
    ordered = sorted(intervals)
    total, reach = 0, ordered[0][0]
    for start, end in ordered:
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total, reach - ordered[0][0]


def use(path: Path, kinds: tuple[str, ...], device: int = 0) -> tuple[float, float]:
    events = rows_of(path)[0]["device_events"].filter(pl.col("kind").is_in(kinds), device=device)
    pairs = events.select("start_ns", (pl.col("start_ns") + pl.col("wall_ns")).alias("end")).iter_rows()
    busy, span = union_and_span(pairs)
    return round(busy / 1e6, 3), round(span / 1e6, 3)


@pytest.mark.parametrize(
    ("name", "kinds", "busy_ms", "span_ms", "share"),
    [
        ("healthy_1pct", ("kernel",), 400.000, 403.990, 99.0124),
        ("h100_2gpu_1s", ("kernel",), 22.385, 960.485, 2.3306),
        ("h100_2gpu_1s", ALL, 962.890, 969.448, 99.3236),
        ("t4_power_iteration", ("kernel",), 1131.743, 1790.608, 63.2044),
        ("a100_cloverleaf", ("kernel",), 294.405, 342.341, 85.9975),
        ("mock", ("kernel",), 0.004, 18.255, 0.0219),
    ],
)
def test_the_published_share_of_busy_time_comes_out(
    recorded: Path, name: str, kinds: tuple[str, ...], busy_ms: float, span_ms: float, share: float
) -> None:
    found = use(recorded / f"traces/nsys/{name}.sqlite", kinds)
    assert found == (busy_ms, span_ms)
    assert 100 * found[0] / found[1] == pytest.approx(share, abs=1e-4)


def test_every_row_of_the_vendors_own_listing_is_there(recorded: Path) -> None:
    events = rows_of(recorded / "traces/nsys/a100_cloverleaf.sqlite")[0]["device_events"]
    ours = Counter(
        events.filter(pl.col("kind").is_in(ALL))
        .select("start_ns", (pl.col("start_ns") + pl.col("wall_ns")).alias("end"), "stream", "kind", "bytes")
        .iter_rows()
    )
    with (recorded / "traces/nsys/a100_cloverleaf.gpu_trace.csv").open(newline="") as file:
        entered = [row for row in csv.DictReader(file) if row["Event Type"] == "Enter"]
    kinds = {"kernel": "kernel"}
    theirs = Counter(
        (
            int(row["Timestamp (ns)"]),
            int(row["_matching_timestamp"]),
            int(float(row["streamId"])),
            kinds.get(row["type"], "copy"),
            int(float(row["bytes"])) if row["bytes"] else None,
        )
        for row in entered
    )
    assert ours == theirs
    assert len(entered) == 1591


def test_two_processes_on_two_devices_are_two_ranks(recorded: Path) -> None:
    tables, sink = rows_of(recorded / "traces/nsys/h100_2gpu_1s.sqlite")
    pairs = tables["device_events"].select("rank", "device").unique().sort("rank").rows()
    assert pairs == [(0, 0), (1, 1)]
    assert sink.counts["device events without a launch record"] == 2276
    kernels = tables["device_events"].filter(kind="kernel")
    assert kernels["launch_ns"].null_count() == 1810
    assert kernels.filter(pl.col("launch_ns").is_not_null())["operator"].null_count() == 0


def test_a_synchronisation_has_the_name_of_the_call_that_waited(recorded: Path) -> None:
    for name, call in (("a100_cloverleaf", "cudaDeviceSynchronize"), ("mock", "cudaStreamSynchronize")):
        events = rows_of(recorded / f"traces/nsys/{name}.sqlite")[0]["device_events"]
        assert events.filter(kind="sync")["name"].unique().to_list() == [call]


def test_environment_variables_are_told_by_number_and_no_value_is_kept(recorded: Path) -> None:
    tables, sink = rows_of(recorded / "traces/nsys/t4_power_iteration.sqlite")
    assert any("103 environment variables" in note for note in sink.notes)
    kept = str(sink.info) + str(sink.notes) + "".join(tables["host_events"]["name"].drop_nulls().to_list())
    assert "/usr/local/cuda" not in kept
    assert "Nsight Systems says: Not all CUDA events might have been collected." in sink.notes


def test_what_the_file_lacks_is_said(recorded: Path) -> None:
    _, sink = rows_of(recorded / "traces/nsys/mock.sqlite")
    assert "operators and steps: the file has no NVTX ranges (record with --trace=cuda,nvtx)" in sink.unknown
    _, sink = rows_of(recorded / "traces/nsys/h100_2gpu_1s.sqlite")
    assert "estimated SM efficiency: the file does not say how many SMs the device has" in sink.unknown


def test_no_file_is_changed_and_nothing_appears_beside_it(recorded: Path) -> None:
    folder = recorded / "traces/nsys"
    before = sorted(path.name for path in folder.iterdir())
    path = folder / "mock.sqlite"
    digest = hashlib.sha256(path.read_bytes()).digest()
    assert recognize_head(path.read_bytes()[:64], path)
    rows_of(path)
    assert sorted(p.name for p in folder.iterdir()) == before
    assert hashlib.sha256(path.read_bytes()).digest() == digest

"""Cores, communication, verdicts and honesty on small tables made by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from detscope.analyze.device.cores import core_figures
from detscope.analyze.device.figures import device_figures
from detscope.runs.writer import polars_schema

MS = 1_000_000
NO_METRICS = pl.DataFrame(schema=polars_schema("kernel_metrics"))


def events(*rows: dict[str, Any]) -> pl.DataFrame:
    usual = {"rank": 0, "device": 0, "stream": 7, "kind": "kernel", "name": "k", "communication": False}
    return pl.DataFrame([{**usual, **row} for row in rows], schema=polars_schema("device_events"))


def hosts(*rows: dict[str, Any]) -> pl.DataFrame:
    usual = {"rank": 0, "process": 1, "thread": 1}
    return pl.DataFrame([{**usual, **row} for row in rows], schema=polars_schema("host_events"))


def kernel(start_ms: float, wall_ms: float, launch_ms: float | None = None, **more: Any) -> dict[str, Any]:
    launch = None if launch_ms is None else int(launch_ms * MS)
    return {
        "start_ns": int(start_ms * MS),
        "wall_ns": int(wall_ms * MS),
        "launch_ns": launch,
        "launch_wall_ns": None if launch is None else 1000,
        **more,
    }


def step(number: int, start_ms: float, wall_ms: float) -> dict[str, Any]:
    name = f"ProfilerStep#{number}"
    return {"kind": "step", "name": name, "start_ns": int(start_ms * MS), "wall_ns": int(wall_ms * MS)}


def metrics(*rows: tuple[int, int, str, float | None]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {"process": process, "device": 0, "kernel": number, "name": "k", "metric": metric, "value": value}
            for process, number, metric, value in rows
        ],
        schema=polars_schema("kernel_metrics"),
    )


PIPE = "sm__inst_executed_pipe_{}.avg.pct_of_peak_sustained_elapsed"
CYCLES = "gpc__cycles_elapsed.max"


def test_core_use_is_weighted_by_cycles_over_all_kernels_the_last_one_too():
    found = core_figures(
        metrics(
            *((1, 0, CYCLES, 100.0), (1, 0, PIPE.format("fma"), 50.0)),
            *((1, 1, CYCLES, 300.0), (1, 1, PIPE.format("fma"), 10.0)),
        ),
        0.5,
    )
    pipes = {pipe.name: pipe for pipe in found.pipes}
    assert found.kernels == 2
    assert pipes["fma"].value == pytest.approx(0.2)
    assert pipes["fma"].of_window == pytest.approx(0.1)
    assert pipes["fma"].coverage == 1.0


def test_a_counter_that_a_kernel_lacks_lowers_the_coverage_and_is_not_counted_as_zero():
    found = core_figures(
        metrics(
            *((1, 0, CYCLES, 100.0), (1, 0, PIPE.format("tensor"), 80.0)),
            *((2, 0, CYCLES, 300.0), (2, 0, PIPE.format("tensor"), None)),
        ),
        None,
    )
    pipes = {pipe.name: pipe for pipe in found.pipes}
    assert found.kernels == 2, "equal numbers of two processes are two kernels"
    assert pipes["tensor"].value == pytest.approx(0.8)
    assert pipes["tensor"].coverage == pytest.approx(0.25)
    assert pipes["tensor"].of_window is None


def test_without_device_events_there_are_no_figures_rather_than_zeros():
    assert device_figures(events(), hosts(step(1, 0, 10)), NO_METRICS) is None


def test_exposed_communication_is_what_no_other_kernel_hides():
    figures = device_figures(
        events(kernel(0, 4, 0), kernel(2, 6, 0, stream=8, communication=True, name="nccl")),
        hosts(),
        NO_METRICS,
    )
    assert figures.communication.busy_ns == 6 * MS
    assert figures.communication.exposed_ns == 4 * MS
    assert figures.utilisation.compute_ns == 4 * MS
    assert figures.verdict.bound == "communication"


def test_the_rank_that_waits_least_in_communication_is_the_one_the_others_wait_for():
    rows = [
        kernel(0, 2, 0),
        kernel(2, 8, 0, communication=True),
        kernel(0, 9, 0, rank=1),
        kernel(9, 1, 0, rank=1, communication=True),
    ]
    assert device_figures(events(*rows), hosts(), NO_METRICS).straggler.rank == 1


def test_a_step_ends_with_its_last_kernel_and_the_next_begins_there():
    figures = device_figures(
        events(kernel(1, 11, 1), kernel(14, 2, 13), kernel(17, 8, 15)),
        hosts(step(5, 0, 10), step(6, 10, 10)),
        NO_METRICS,
    )
    assert [row.window_ns for row in figures.per_step] == [12 * MS, 13 * MS]
    assert figures.utilisation.window_ns == 25 * MS
    assert figures.utilisation.kernels_ns == 21 * MS


def test_copies_that_no_kernel_hides_make_a_run_copy_bound():
    copy = kernel(1, 90, 1, kind="copy", copy="HtoD", bytes=9_000_000, name="Memcpy HtoD (Pinned -> Device)")
    figures = device_figures(events(kernel(0, 5, 0), copy, kernel(91, 1, 1)), hosts(), NO_METRICS)
    (row,) = figures.copies.rows
    assert (row.direction, row.memory, row.gb_per_s) == ("HtoD", "pinned", pytest.approx(0.1))
    assert row.exposed_ns == 86 * MS
    assert figures.verdict.sentence.startswith("copy-bound")


def test_what_is_unlinked_missing_or_out_of_order_is_counted():
    figures = device_figures(
        events(kernel(1, 2), kernel(2, 4, 0), kernel(8, 1, 9), kernel(40, 1, 39)),
        hosts(step(1, 0, 10), step(4, 9, 10)),
        NO_METRICS,
        dropped={"events without ts dropped": 3},
    )
    counts = figures.honesty
    assert counts.unlinked == 1
    assert counts.overlapping_on_a_stream == 1
    assert counts.began_before_launch == 1
    assert counts.missing_steps == 2
    assert counts.overlapping_steps == 1
    assert counts.outside_window == 1
    assert "3 events without ts dropped" in counts.remarks


def test_use_by_stage_counts_the_wait_for_its_own_work():
    figures = device_figures(
        events(kernel(0, 4, 0, stage="backbone"), kernel(10, 6, 9, stage="head")), hosts(), NO_METRICS
    )
    rows = {row.name: row for row in figures.per.stage}
    assert rows["backbone"].use == 1.0
    assert rows["head"].idle_ns == 6 * MS
    assert rows["head"].use == pytest.approx(0.5)


def test_blame_names_the_call_its_module_and_its_line():
    around = {"start_ns": 1 * MS, "wall_ns": 9 * MS}
    figures = device_figures(
        events(kernel(0, 9, 0), kernel(20, 5, 19, operator="aten::add")),
        hosts(
            {"kind": "module", "name": "roi_heads", "start_ns": 0, "wall_ns": 30 * MS},
            {"kind": "operator", "name": "torchvision::nms", **around, "stack": "roi_heads.py(77): filter"},
            {"kind": "operator", "name": "aten::to", **around},
            {"kind": "runtime", "name": "cudaStreamSynchronize", "start_ns": 2 * MS, "wall_ns": 7 * MS},
        ),
        NO_METRICS,
    )
    (row,) = figures.blame
    assert (row.call, row.module, row.line) == ("nms", "roi_heads", "roi_heads.py(77): filter")
    assert row.idle_ns == 11 * MS
    assert figures.verdict.bound == "synchronisation"
    assert "nms in roi_heads" in figures.verdict.sentence


def test_without_step_marks_all_shares_of_kernels_are_of_one_window():
    copy = kernel(0, 100, 0, kind="copy", copy="HtoD", name="Memcpy HtoD", stream=8)
    figures = device_figures(
        events(kernel(10, 1, 9, blocks_per_sm=1.0), kernel(12, 1, 9, blocks_per_sm=1.0), copy),
        hosts(),
        NO_METRICS,
    )
    use = figures.utilisation
    assert (use.window_ns, use.with_copies_window_ns) == (3 * MS, 100 * MS)
    assert use.kernels == use.compute == figures.sm_efficiency.value == pytest.approx(2 / 3)
    assert use.copies == 1.0


def test_linked_kernels_alone_stand_beside_all_kernels():
    use = device_figures(events(kernel(0, 2, 0), kernel(4, 4)), hosts(), NO_METRICS).utilisation
    assert (use.kernels_ns, use.linked_ns) == (6 * MS, 2 * MS)
    assert (use.kernels, use.linked) == (0.75, 0.25)


def test_tensorboards_rule_has_the_pauses_between_steps_in_its_window():
    figures = device_figures(
        events(kernel(1, 5, 1), kernel(12, 2, 11), kernel(21, 4, 21), kernel(25, 10, 22)),
        hosts(step(5, 0, 10), step(6, 20, 10)),
        NO_METRICS,
    )
    use = figures.utilisation
    assert (use.kernels_ns, use.window_ns) == (19 * MS, 25 * MS)
    assert (use.tensorboard.kernels_ns, use.tensorboard.window_ns) == (21 * MS, 35 * MS)
    assert use.tensorboard.left_out_steps == 0
    assert device_figures(events(kernel(0, 1, 0)), hosts(), NO_METRICS).utilisation.tensorboard is None


def test_tensorboards_rule_leaves_out_a_last_step_that_launched_much_less():
    steps = [step(number, 10 * number, 10) for number in range(3)]
    busy = [kernel(10 * number + i, 1, 10 * number + i) for number in range(2) for i in range(5)]
    figures = device_figures(events(*busy, kernel(21, 1, 21)), hosts(*steps), NO_METRICS)
    found = figures.utilisation.tensorboard
    assert (found.kernels_ns, found.window_ns, found.left_out_steps) == (10 * MS, 20 * MS, 1)


def test_collective_kernels_are_parts_of_communication_and_of_nothing_else():
    reduced = kernel(4, 6, 0, stream=8, communication=True, name="nccl", phase="backward", module="conv1")
    figures = device_figures(
        events(kernel(0, 4, 0, phase="backward", module="conv1"), reduced), hosts(), NO_METRICS
    )
    for rows, own in ((figures.per.phase, "backward"), (figures.per.module, "conv1")):
        assert {row.name: row.kernels_ns for row in rows} == {own: 4 * MS, "communication": 6 * MS}
    assert figures.per.stage == (), "no stage is known"

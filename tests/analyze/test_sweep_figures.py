from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console

from detscope.analyze.sweep.figures import SweepSummary, find_stop_to_pay, summarize_sweep
from detscope.report.render.picture import write_chart_files
from detscope.report.render.terminal import print_sections
from detscope.report.sweep_progress import SweepLines
from detscope.report.verbs.sweep import sweep_sections


def row(network: str, batch: int, rate: float | None, **more: Any) -> dict[str, Any]:
    return {
        "network": network, "stage": "training", "device": "cpu", "batch_size": batch, "kind": "ok",
        "status": "ok", "images_per_s": rate, "step_ms": rate and 1000 * batch / rate, "step_low_ms": None,
        "step_high_ms": None, "interval_width": 0.03, "interval_reached": 1, "parameters": 10**6,
        "allocated_bytes": 10**6 * batch, "process_bytes": None, "repetition": 0,
    } | more  # fmt: skip


def figures_of(rows: list[dict[str, Any]]) -> SweepSummary:
    counts = dict.fromkeys(("done", "failed", "skipped", "left", "retried", "duplicates"), 0)
    lists: dict[str, Any] = {"plans": [], "devices": [], "last_failures": [], "statuses": {"ok": 1}}
    return summarize_sweep(rows, {"store": "plan.db", **counts, **lists})


def test_the_batch_where_it_stops_to_pay_is_the_first_that_no_larger_one_beats_by_much() -> None:
    assert find_stop_to_pay([(1, 10.0), (2, 18.0), (4, 30.0), (8, 31.0), (16, 30.5)]) == 4
    assert find_stop_to_pay([(1, 10.0), (2, 20.0), (4, 40.0)]) is None  # the largest still pays
    assert find_stop_to_pay([(1, 10.0), (2, 10.1), (4, 40.0), (8, 40.0)]) == 4  # a dip is not the end
    assert find_stop_to_pay([(4, 10.0)]) is None


def test_repetitions_become_their_median_and_failures_are_no_points() -> None:
    rows = [row("a", 1, rate, repetition=index) for index, rate in enumerate((10.0, 12.0, 50.0))]
    rows.append(row("a", 2, None, kind="oom_host", status="oom_host"))
    (group,) = figures_of(rows).groups
    assert [(point.batch_size, point.images_per_s) for point in group.points] == [(1, 12.0)]


def test_on_the_front_no_network_is_both_faster_and_larger() -> None:
    rows = [
        row("large", 1, 10.0, parameters=30),
        row("small", 1, 40.0, parameters=10),
        row("worse", 1, 9.0, parameters=20),
    ]
    front = {point.network: point.front for point in figures_of(rows).pareto}
    assert front == {"large": True, "small": True, "worse": False}


def test_pictures_are_drawn_for_what_was_measured(tmp_path: Path) -> None:
    rows = [row(f"net<{number}>", batch, 10.0 * batch) for number in range(8) for batch in (1, 2, 4)]
    paths = write_chart_files(sweep_sections(figures_of(rows)), tmp_path / "pictures")
    assert [path.name for path in paths] == ["throughput.png", "latency.png", "allocated.png", "pareto.png"]
    heights = {"pareto.png": 700}
    for path in paths:
        with Image.open(path) as picture:
            assert picture.size == (1600, heights.get(path.name, 820))
            assert len(picture.getcolors(1 << 20) or ()) > 50  # something is drawn
    assert write_chart_files(sweep_sections(figures_of([])), tmp_path / "none") == []


def test_the_table_marks_intervals_that_were_not_reached() -> None:
    rows = [row("a", 1, 10.0), row("[b]", 2, 10.0, interval_width=0.2, interval_reached=0)]
    stream = io.StringIO()
    print_sections(sweep_sections(figures_of(rows)), Console(file=stream, width=140))
    text = stream.getvalue()
    assert "3.0 %" in text
    assert "20.0 % !" in text
    assert "[b]" in text


class Thing:
    def __init__(self, device: str) -> None:
        self.device_name, self.trial, self.kind, self.status_text = device, self, "ok", "ok"
        self.latency_why = None

    def describe_trial(self) -> str:
        return "net training batch 2"


def test_there_is_one_line_per_device_with_what_is_left_and_the_failures() -> None:
    now = [0.0]
    stream = io.StringIO()
    lines = SweepLines(stream, clock=lambda: now[0])
    first, second = Thing("cpu"), Thing("cuda:0")
    lines.begin_sweep({"cpu": [first] * 4, "cuda:0": [second]})
    for ending in ("ok", "timeout"):
        lines.start_trial(first)
        now[0] += 10
        first.kind = first.status_text = ending
        lines.end_trial(first, first, True)
    lines.finish_sweep()
    shown = stream.getvalue().splitlines()
    assert shown[:2] == [
        "cpu: 0/4  0 ok  0 failed  0 skipped  4 left",
        "cuda:0: 0/1  0 ok  0 failed  0 skipped  1 left",
    ]
    assert "failed: net training batch 2: timeout" in shown
    assert "cpu: 2/4  1 ok  1 failed  0 skipped  2 left  ETA 0:20  now net training batch 2" in shown

"""Device use on a terminal: figures with numerator and denominator, causes, blame, and honest absence."""

from __future__ import annotations

import io

import polars as pl
from rich.console import Console

from detscope.analyze.device.figures import device_figures
from detscope.report.terminal import render
from detscope.report.terminal_device import device_name, render_device
from detscope.runs.writer import polars_schema

MS = 1_000_000


def figures() -> dict:
    device = [
        {"kind": "kernel", "name": "void gemm<float>(int)", "start_ns": 60 * MS, "wall_ns": 20 * MS},
        {"kind": "copy", "name": "Memcpy HtoD (Pinned -> Device)", "start_ns": 50 * MS, "wall_ns": 10 * MS},
    ]
    device = [
        {"rank": 0, "device": 0, "stream": 7, "launch_ns": row["start_ns"] - MS, "launch_wall_ns": 5, **row}
        | ({"operator": "aten::[mm]", "module": "backbone", "stage": "backbone", "phase": "forward"})
        for row in device
    ]
    host = [
        {"rank": 0, "kind": "step", "name": "ProfilerStep#3", "start_ns": 0, "wall_ns": 100 * MS},
        {"rank": 0, "kind": "loader", "name": "enumerate(DataLoader)#x", "start_ns": 0, "wall_ns": 40 * MS},
    ]
    found = device_figures(
        pl.DataFrame(device, schema=polars_schema("device_events")),
        pl.DataFrame(host, schema=polars_schema("host_events")),
        pl.DataFrame(schema=polars_schema("kernel_metrics")),
    )
    assert found is not None
    return found


def shown(summary: dict, whole: bool = False) -> str:
    console = Console(file=io.StringIO(), width=140, force_terminal=False)
    (render if whole else render_device)(summary, console)
    return console.file.getvalue()


def test_utilisation_stands_with_its_numerator_and_denominator():
    text = shown({"device": figures()})
    assert "kernels ran 20.00 % of the time (20.000 of 100.000 ms)" in text
    assert "kernels and copies ran 30.00 % of the time (30.000 of 100.000 ms)" in text
    assert "window: the measured steps" in text


def test_idle_time_is_shown_by_cause_and_adds_up_to_the_window():
    text = shown({"device": figures()})
    rows = {
        line.split("  ")[0]: line
        for line in text.splitlines()
        if line.startswith(("busy", "idle", "window  "))
    }
    assert "40.0 %" in rows["idle: waiting for data"]
    assert "30.0 %" in rows["idle: host late with launches"]
    assert "100.0" in rows["window"]


def test_blame_names_the_loader_first_and_markup_in_names_stays_text():
    text = shown({"device": figures()})
    blame = text.split("Who made the device wait")[1]
    assert blame.index("enumerate(DataLoader)#x") < blame.index("late launch of")
    assert "aten::[mm]" in text


def test_estimates_that_a_file_does_not_hold_are_not_shown_as_zero():
    assert "SM efficiency cannot tell: the file gives no blocks per SM" in shown({"device": figures()})


def test_a_run_without_device_events_says_that_it_cannot_tell():
    device = {"name": None, "why": "no device events were recorded", "utilisation": {"kernels": None}}
    assert "cannot tell: no device events were recorded" in shown({"device": device})
    assert shown({"device": "cpu"}) == ""


def test_the_device_keeps_its_name_with_and_without_figures():
    assert device_name({"device": "cuda:0"}) == "cuda:0"
    assert device_name({"device": {"name": "cuda:0"}}) == "cuda:0"
    assert device_name({"device": {"name": None}}) is None


def test_an_imported_run_shows_its_files_instead_of_a_model():
    summary = {
        "verb": "import",
        "status": "ok",
        "sources": [{"file": "a.json", "format": "Kineto / Chrome trace", "rank": 0}],
        "steps": 1,
        "verdict": "waiting for data",
        "device": figures(),
        "run": "runs/x",
    }
    text = shown(summary, whole=True)
    assert "a.json (Kineto / Chrome trace, rank 0)" in text
    assert "weights" not in text
    assert "waiting for data" in text


def test_cores_are_shown_in_the_place_of_a_device():
    processor = {
        "cores": 4,
        "cores_busy": 2.0,
        "utilisation": 0.5,
        "processor_ns": 2e9,
        "wall_ns": 1e9,
        "n": 5,
        "phases": [{"name": "forward", "cores_busy": 3.0}],
    }
    text = shown({"device": "cpu", "processor": processor})
    assert "2.00 cores busy of 4: 50.0 %" in text
    assert "forward 3.00" in text

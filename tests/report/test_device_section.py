"""Device use as it is told: figures with numerator and denominator, causes, blame, and honest absence."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import polars as pl
import pytest
from rich.console import Console

from detscope.analyze.device.figures import DeviceUse, device_figures
from detscope.analyze.device.imported import ImportedFigures, SourceFile
from detscope.analyze.device.processor import PhaseCores, ProcessorUse, TelemetryFigures
from detscope.analyze.drawing import ReportData, report_data
from detscope.report.model import Absent, Section
from detscope.report.render.terminal import print_whole
from detscope.report.sections import device, imported, make_sections, method
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter, polars_schema

MS = 1_000_000


def figures(operator: str = "aten::[mm]") -> DeviceUse:
    rows = [
        {"kind": "kernel", "name": "void gemm<float>(int)", "start_ns": 60 * MS, "wall_ns": 20 * MS},
        {"kind": "copy", "name": "Memcpy HtoD (Pinned -> Device)", "start_ns": 50 * MS, "wall_ns": 10 * MS},
    ]
    about = {"operator": operator, "module": "backbone", "stage": "backbone", "phase": "forward"}
    rows = [
        {"rank": 0, "device": 0, "stream": 7, "launch_ns": row["start_ns"] - MS, "launch_wall_ns": 5}
        | about
        | row
        for row in rows
    ]
    host = [
        {"rank": 0, "kind": "step", "name": "ProfilerStep#3", "start_ns": 0, "wall_ns": 100 * MS},
        {"rank": 0, "kind": "loader", "name": "enumerate(DataLoader)#x", "start_ns": 0, "wall_ns": 40 * MS},
    ]
    found = device_figures(
        pl.DataFrame(rows, schema=polars_schema("device_events")),
        pl.DataFrame(host, schema=polars_schema("host_events")),
        pl.DataFrame(schema=polars_schema("kernel_metrics")),
    )
    assert found is not None
    return found


@pytest.fixture(scope="module")
def empty(tmp_path_factory) -> ReportData:
    writer = RunWriter(tmp_path_factory.mktemp("runs"), "import", "made", {"device": "Test GPU"})
    writer.close_run("ok")
    return report_data(load_run(Path(writer.folder)))


def with_figures(data: ReportData, **changed) -> ReportData:
    return ReportData(data.run, msgspec.structs.replace(data.summary, **changed))


def shown(*sections: Section | Absent | None) -> str:
    console = Console(file=io.StringIO(), width=140, force_terminal=False)
    print_whole([section for section in sections if section is not None], console)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def text(empty) -> str:
    return shown(device.section(with_figures(empty, device_use=figures())))


def test_utilisation_stands_with_its_numerator_and_denominator(text):
    assert "kernels ran 20.00 % of the time (20.000 of 100.000 ms)" in text
    assert "kernels and copies ran 30.00 % of the time (30.000 of 100.000 ms)" in text
    assert "window: the measured steps" in text


def test_idle_time_is_shown_by_cause_and_adds_up_to_the_window(text):
    rows = {
        line.split("  ")[0]: line
        for line in text.splitlines()
        if line.startswith(("busy", "idle", "window  "))
    }
    assert "40.0 %" in rows["idle: waiting for data"]
    assert "30.0 %" in rows["idle: host late with launches"]
    assert "100.0" in rows["window"]


def test_blame_names_the_loader_first_and_markup_in_names_stays_text(text):
    blame = text.split("Who made the device wait")[1]
    assert blame.index("enumerate(DataLoader)#x") < blame.index("late launch of")
    assert "aten::[mm]" in text


def test_names_that_would_steer_a_terminal_are_inert(empty):
    text = shown(device.section(with_figures(empty, device_use=figures("\x1b[2J[bold red]x[/]"))))
    assert "\x1b" not in text
    assert "\\x1b[2J[bold red]x[/]" in text


def test_estimates_that_a_file_does_not_hold_are_not_shown_as_zero(text):
    assert "SM efficiency cannot tell: the file gives no blocks per SM" in text


def test_a_run_without_device_events_says_that_it_cannot_tell(empty):
    found = device.section(empty)
    assert isinstance(found, Absent)
    assert found.why == "no device events were recorded"
    told = shown(*make_sections(empty)[0])
    assert "cannot tell: device use: no device events were recorded" in told


def test_an_imported_run_shows_its_files_instead_of_a_model(empty):
    source = SourceFile(file="a.json", format="Kineto / Chrome trace", rank=0, rows=(), counts=(), facts=())
    files = ImportedFigures(sources=(source,), steps=1, stages=(), threads=())
    data = with_figures(empty, imported=files, verdict="waiting for data")
    assert "a.json (Kineto / Chrome trace, rank 0)" in shown(imported.section(data))
    text = shown(*make_sections(data)[0])
    assert "weights" not in text
    assert "Test GPU" in text
    assert "Waiting for data" in text


def test_cores_are_shown_in_the_place_of_a_device(empty):
    times = {"processor_ns": 2e9, "wall_ns": 1e9, "n": 5}
    phase = PhaseCores(name="forward", cores_busy=3.0, utilisation=0.75, **times)
    cores = ProcessorUse(cores=4, cores_busy=2.0, utilisation=0.5, phases=(phase,), per_step=(), **times)
    text = shown(device.section(with_figures(empty, processor=cores, device_use=None)))
    assert "2.00 cores busy of 4: 50.0 %" in text
    assert "forward 3.00" in text


def test_bytes_are_shown_in_units_people_use_and_single_cores_come_after_the_rest(empty):
    readings = [
        TelemetryFigures(
            source="process", metric="rss_bytes", unit="bytes", mean=910_211_025, max=1.2e9, n=2
        ),
        TelemetryFigures(source="core:0", metric="cpu_percent", unit="%", mean=1.0, max=2.0, n=2),
    ]
    text = shown(method.section(with_figures(empty, telemetry=readings)))
    assert "910.2 MB" in text
    assert "1.20 GB" in text
    assert text.index("Single cores and workers") < text.index("core:0")

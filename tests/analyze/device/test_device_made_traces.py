"""The whole path: a simulated program as a file, through the reader, to figures and attribution."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import msgspec
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_answers import answers
from made_files import write_trace
from made_program import TICK_NS, Program, Simulation, Wishes

from detscope.analyze.device.figures import device_figures
from detscope.analyze.device.verdict import say_bound
from detscope.analyze.summary import summarize
from detscope.ingest.formats.kineto import read_trace
from detscope.ingest.sink import Sink
from detscope.runs.writer import polars_schema
from detscope.sessions.importing import run_import

TABLES = ("device_events", "host_events", "kernel_metrics", "steps")
programs = st.builds(
    Wishes,
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 3),
    modules=st.integers(1, 3),
    streams=st.integers(1, 3),
    loader=st.booleans(),
    backward=st.booleans(),
    synchronisations=st.sampled_from([0.0, 0.3]),
    unlinked=st.sampled_from([0.0, 0.2]),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("made")


NUMBER = itertools.count()


def read(program: Program, folder: Path) -> dict[str, pl.DataFrame]:
    """The tables that the reader makes of the program's file."""
    path = folder / f"{next(NUMBER)}.json"
    write_trace(program, path)
    frames: dict[str, list[pl.DataFrame]] = {name: [] for name in TABLES}
    read_trace(path, Sink(lambda table, frame: frames.get(table, []).append(frame)))
    path.unlink()
    return {
        name: pl.concat([pl.DataFrame(schema=polars_schema(name)), *pieces])
        for name, pieces in frames.items()
    }


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs)
def test_a_file_gives_the_figures_of_the_program_that_made_it(folder, wishes):
    program = Simulation(wishes).run()
    if not program.device:
        return
    tables = read(program, folder)
    figures = device_figures(*(tables[name] for name in TABLES))
    right = answers(program)
    assert figures.utilisation.kernels_ns == right.kernels * TICK_NS
    assert figures.utilisation.window_ns == len(right.window) * TICK_NS
    causes = {cause.name: cause.idle_ns // TICK_NS for cause in figures.idle.causes}
    assert {cause: ticks for cause, ticks in causes.items() if ticks} == dict(+right.causes)
    assert figures.honesty.unlinked == sum(not event.linked for event in program.device)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs)
def test_every_linked_event_finds_its_step_operator_module_direction_and_phase(folder, wishes):
    program = Simulation(wishes).run()
    if not program.device:
        return
    found = read(program, folder)["device_events"].sort("start_ns").to_dicts()
    for row, event in zip(found, sorted(program.device, key=lambda e: e.start), strict=True):
        assert (row["kind"], row["name"]) == (event.kind, event.name)
        if not event.linked:
            assert row["launch_ns"] is None
            continue
        assert row["launch_wall_ns"] == (event.launch.end - event.launch.start) * TICK_NS
        assert row["step"] == event.step
        assert row["operator"] == event.operator, event
        if event.kind == "kernel":
            assert (row["direction"], row["phase"]) == (event.direction, event.phase), event
            assert row["module"] == event.module, event


def test_an_imported_file_becomes_a_run_whose_summary_is_plain_data(folder, tmp_path):
    program = Simulation(Wishes(seed=5, steps=3)).run()
    path = folder / "made.json"
    write_trace(program, path)
    (run,) = run_import([path], tmp_path).runs
    summary = summarize(run)
    json.dumps(msgspec.to_builtins(summary), allow_nan=False)
    assert summary.imported.steps == summary.device_use.steps == 3
    assert summary.verdict == say_bound(summary.device_use.verdict)
    assert summary.device_use.utilisation.kernels_ns == answers(program).kernels * TICK_NS


def test_a_file_without_a_device_says_that_it_cannot_tell(folder, tmp_path):
    program = Simulation(Wishes(seed=5, steps=2)).run()
    program.device.clear()
    program.host = [event for event in program.host if event.kind != "runtime"]
    path = folder / "host.json"
    write_trace(program, path)
    (run,) = run_import([path], tmp_path).runs
    summary = summarize(run)
    assert summary.device_use.utilisation is None
    assert "device use: no device events were recorded" in summary.cannot_tell

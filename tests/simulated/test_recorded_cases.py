"""The recorder on the simulated device: what it writes is what was planted, and nobody notices it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from detscope.analyze.summary import summarize
from detscope.machine.profiling import METADATA, find_setting
from simulated import profiler
from simulated.cases import CASES, Case, Recorded, Silence, listen_to_case, record_case, run_case
from simulated.comparison import (
    compare_device_spans,
    compare_device_steps,
    compare_kernels,
    find_wrong,
    list_steps,
    read_table,
)

WHOLE = [case for case in CASES.values() if case.fault is None]
CALLS_MODEL = [case for case in WHOLE if case.loop != "captured"]
Recordings = Callable[[Case, str], Recorded]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    """Every case is recorded once per level."""
    known: dict[tuple[str, str], Recorded] = {}

    def find(case: Case, level: Any) -> Recorded:
        if (case.name, level) not in known:
            known[case.name, level] = record_case(case, level, tmp_path_factory.mktemp("runs"))
        return known[case.name, level]

    return find


def read_info(recorded: Recorded) -> dict[str, Any]:
    return json.loads((recorded.folder / "run.json").read_text())


def name_case(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", WHOLE, ids=name_case)
def test_phases_by_marks_are_those_planted(recordings: Recordings, case: Case) -> None:
    lines = compare_device_steps(recordings(case, "modules"))
    assert len(lines) > 20
    assert not find_wrong(lines)


@pytest.mark.parametrize("case", CALLS_MODEL, ids=name_case)
@pytest.mark.parametrize("kind", ["stage", "module"])
def test_stages_and_modules_by_marks_are_those_planted(recordings: Recordings, case: Case, kind: str) -> None:
    lines = compare_device_spans(recordings(case, "modules"), kind)
    assert lines
    assert not find_wrong(lines)


@pytest.mark.parametrize("case", WHOLE, ids=name_case)
def test_steps_on_the_device_follow_each_other(recordings: Recordings, case: Case) -> None:
    recorded = recordings(case, "modules")
    rows = read_table(recorded, "device_steps").filter(pl.col("stream") == 0)
    for step in list_steps(recorded):
        own = rows.filter(pl.col("step") == step)
        [whole] = own.filter(pl.col("phase") == "step").iter_rows(named=True)
        parts = own.filter(pl.col("phase") != "step")
        assert parts["wall_ns"].sum() == whole["wall_ns"]
        assert parts["idle_ns"].sum() == whole["idle_ns"]
        assert (parts["idle_ns"] <= parts["wall_ns"]).all()


@pytest.mark.parametrize("name", ["hidden data wait", "exposed data wait"])
def test_waiting_for_data_is_what_the_device_waited(recordings: Recordings, name: str) -> None:
    recorded = recordings(CASES[name], "modules")
    shown = read_table(recorded, "device_steps").filter(pl.col("phase") == "data")
    for step in list_steps(recorded):
        [shown_ns] = shown.filter((pl.col("step") == step) & (pl.col("stream") == 0))["wall_ns"]
        planted_ns = recorded.simulation.truth.find_data_wait(step)
        assert abs(shown_ns - planted_ns) < 100_000
        assert (planted_ns > 10_000_000) == (name == "exposed data wait")


@pytest.mark.parametrize("case", CALLS_MODEL, ids=name_case)
def test_kernels_have_the_modules_and_phases_that_launched_them(recordings: Recordings, case: Case) -> None:
    lines = compare_kernels(recordings(case, "ops"))
    assert len(lines) == 3 * 10
    assert not find_wrong(lines)


def test_steps_of_operators_have_no_marks(recordings: Recordings) -> None:
    recorded = recordings(CASES["device-bound"], "ops")
    steps = list_steps(recorded, "ops")
    shown = read_table(recorded, "device_steps")["step"].unique().to_list()
    assert steps
    assert not set(steps) & set(shown)
    called = (
        read_table(recorded, "host_events").filter(pl.col("kind") == "runtime")["name"].unique().to_list()
    )
    assert "cudaLaunchKernel" in called
    assert "cudaEventRecord" not in called


def test_a_replayed_graph_is_work_of_its_step(recordings: Recordings) -> None:
    recorded = recordings(CASES["graph capture"], "modules")
    rows = read_table(recorded, "device_steps")
    for step in list_steps(recorded):
        [other] = rows.filter((pl.col("step") == step) & (pl.col("phase") == "other"))["wall_ns"]
        assert other == pytest.approx(18_300_000, rel=0.02)


def test_kernels_of_a_replayed_graph_belong_to_a_step(recordings: Recordings) -> None:
    recorded = recordings(CASES["graph capture"], "ops")
    events = read_table(recorded, "device_events")
    found = events.filter(pl.col("step").is_in(list_steps(recorded, "ops")))
    assert found["wall_ns"].sum() == pytest.approx(3 * 18_400_000, rel=0.02)


def test_a_device_that_broke_leaves_the_steps_before(recordings: Recordings) -> None:
    recorded = recordings(CASES["device-side assert"], "modules")
    assert "device-side assert triggered" in str(recorded.error)
    info = read_info(recorded)
    assert info["status"] == "failed"
    assert "device-side assert triggered" in info["reason"]
    assert read_table(recorded, "steps")["step"].max() >= 13, "the host hears of it late"
    shown = read_table(recorded, "device_steps")
    assert shown.filter(pl.col("step") == 8).height
    assert not find_wrong(compare_device_steps(recorded))


def test_a_device_that_broke_is_said_to_tell_no_more(recordings: Recordings) -> None:
    told = read_info(recordings(CASES["device-side assert"], "modules"))["device_clock"]
    assert "device-side assert" in told["why"]
    assert told["steps_lost"] > 0


def test_an_out_of_memory_is_placed(recordings: Recordings) -> None:
    recorded = recordings(CASES["out of memory"], "modules")
    assert isinstance(recorded.error, torch.OutOfMemoryError)
    info = read_info(recorded)
    assert info["status"] == "oom_device"
    assert (info["oom"]["step"], info["oom"]["phase"], info["oom"]["module"]) == (13, "forward", "neck")
    assert info["oom"]["device"] == "cuda:0"
    assert not find_wrong(compare_device_steps(recorded))


@pytest.mark.parametrize("case", CASES.values(), ids=name_case)
@pytest.mark.parametrize("level", ["phases", "modules", "ops"])
def test_a_loop_computes_the_same_whoever_listens(recordings: Recordings, case: Case, level: str) -> None:
    alone = record_alone(case)
    listened = recordings(case, level)
    assert type(listened.error) is type(alone[1])
    assert str(listened.error).splitlines()[:1] == str(alone[1]).splitlines()[:1]
    if case.fault is None:
        assert listened.losses == alone[0]


@cache
def record_alone(case: Case) -> tuple[list[float], BaseException | None]:
    made: list[Any] = []

    def listen(training: Any) -> Silence:
        made.append(training)
        return Silence()

    try:
        run_case(case, listen)
    except RuntimeError as error:
        return [], error.with_traceback(None)
    return [one.item() for one in made[0].late], None


def test_marks_cost_what_is_told_of_them(tmp_path: Path) -> None:
    recorded = record_case(CASES["device-bound"], "modules", tmp_path)
    told = read_info(recorded)["device_clock"]
    assert told["mark_cost_ns"] == recorded.simulation.machine.record_ns
    records = [one for one in recorded.simulation.machine.calls if one.name == "cudaEventRecord"]
    steps = len(read_table(recorded, "steps")["step"].unique())
    assert len(records) <= told["marks_per_step"] * steps + 40
    assert told["mark_share"] < 0.03


@pytest.mark.parametrize("name", ["device-bound", "synchronisation in forward", "fp16 with a scaler"])
def test_a_script_that_knows_nothing_of_us_has_the_same_phases(name: str, tmp_path: Path) -> None:
    recorded = listen_to_case(CASES[name], "modules", tmp_path)
    lines = compare_device_steps(recorded)
    for phase in ("transfer", "forward", "backward", "optimizer"):
        own = [line for line in lines if f" {phase} " in line.what]
        assert len(own) > 5
        assert not find_wrong(own)
    assert not find_wrong(compare_device_spans(recorded, "stage"))


@pytest.mark.parametrize("lacks", [True, False])
def test_what_this_torchs_profiler_leaves_out_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lacks: bool
) -> None:
    if lacks:
        plain: Any = torch._C._profiler._ExperimentalConfig

        def refuse_keywords(**options: Any) -> Any:
            if options:
                raise TypeError("incompatible constructor arguments")
            return plain()

        monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", refuse_keywords)
    elif find_setting(METADATA) is None:
        pytest.skip(f"torch {torch.__version__} hands over no launch sizes")
    recorded = record_case(CASES["device-bound"], "ops", tmp_path)
    told = [text for text in summarize(recorded.folder).cannot_tell if "launch sizes" in text]
    assert bool(told) == lacks
    assert all(torch.__version__ in text for text in told)


@pytest.mark.parametrize("name", ["device-bound", "synchronisation in forward", "side-stream prefetcher"])
def test_events_of_an_older_torch_give_the_same_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setattr(profiler, "KinetoEvent", profiler.OlderKinetoEvent)  # up to 2.10
    monkeypatch.delattr(profiler.OlderKinetoEvent, "metadata_json")  # before 2.10
    lines = compare_kernels(record_case(CASES[name], "ops", tmp_path))
    assert len(lines) == 3 * 10
    assert not find_wrong(lines)

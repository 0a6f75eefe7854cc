"""From a kernel to its operator, module, direction, phase and step."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_maker import AUTOGRAD, MAIN, STREAM, event, launch, read_events, training_step

from detscope.analyze.summary import summarize
from detscope.sessions.importing import run_import
from detscope.traces.nesting import NOBODY, NestedIntervals, find_by_key, make_axis, self_times


@st.composite
def nested_intervals(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Intervals (thread, start, end) that nest properly on each of three threads."""
    found: list[tuple[int, int, int]] = []

    def fill(thread: int, start: int, end: int, depth: int) -> None:
        at = start
        while depth < 5 and end - at > 2 and draw(st.booleans()):
            begin = draw(st.integers(at, end - 2))
            finish = draw(st.integers(begin + 1, end))
            found.append((thread, begin, finish))
            fill(thread, begin, finish, depth + 1)
            at = finish

    for thread in range(3):
        fill(thread, 0, 200, 0)
    return draw(st.permutations(found))


@settings(max_examples=200, deadline=None)
@given(
    nested_intervals(), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 210)), min_size=1, max_size=20)
)
def test_the_innermost_interval_is_the_one_a_search_by_hand_finds(intervals, moments):
    threads, starts, ends = (np.array([i[k] for i in intervals], np.int64) for k in range(3))
    nest = NestedIntervals(make_axis(starts, ends, 3), threads, starts, ends - starts)
    asked, times = (np.array([m[k] for m in moments], np.int64) for k in range(2))
    found = nest.find_innermost(asked, times)
    for (thread, time), index in zip(moments, found.tolist(), strict=True):
        around = [(e - s, s, e) for t, s, e in intervals if t == thread and s <= time < e]
        if not around:
            assert index == NOBODY
        else:
            assert (int(ends[index] - starts[index]), int(starts[index]), int(ends[index])) == min(around)
            assert threads[index] == thread
    parents = nest.find_parents()
    for child, parent in enumerate(parents.tolist()):
        if parent != NOBODY:
            assert threads[child] == threads[parent]
            assert starts[parent] <= starts[child] and ends[child] <= ends[parent]
    own = self_times(ends - starts, parents)
    top = parents == NOBODY
    assert own.sum() == (ends - starts)[top].sum()


def test_keys_find_their_last_entry_and_negative_keys_nobody():
    keys = np.array([5, 3, 5, -1], np.int64)
    assert find_by_key(keys, np.array([5, 3, 4, -1], np.int64)).tolist() == [2, 1, NOBODY, NOBODY]


@pytest.fixture
def step(tmp_path):
    return read_events(tmp_path, training_step() + training_step(2000.0, 2))


def kernels(found):
    columns = ("operator", "module", "direction", "phase", "step", "stage")
    return {
        (row["name"], row["step"]): tuple(row[column] for column in columns)
        for row in found.table("device_events").iter_rows(named=True)
    }


def test_every_kernel_is_where_it_was_launched_in_both_directions(step):
    found = kernels(step)
    for number in (1, 2):
        assert found["conv", number] == ("aten::conv2d", "Conv2d_0", "forward", "forward", number, "Conv2d_0")
        linear = ("aten::linear", "Linear_0", "forward", "forward", number, "Linear_0")
        assert found["linear", number] == linear
        back = ("LinearBackward0", "Linear_0", "backward", "backward", number, "Linear_0")
        assert found["linear_back", number] == back
        conv_back = "autograd::engine::evaluate_function: ConvBackward0"
        assert found["conv_back", number] == (
            conv_back,
            "Conv2d_0",
            "backward",
            "backward",
            number,
            "Conv2d_0",
        )
        optimizer = ("aten::_foreach_add_", None, "forward", "optimizer", number, None)
        assert found["sgd", number] == optimizer
        copy = found["Memcpy HtoD (Pageable -> Device)", number]
        assert copy == ("aten::copy_", None, "forward", "transfer", number, None)


def test_a_gradient_is_accumulated_for_the_module_that_made_it(step):
    assert kernels(step)["accumulate", 1][1:4] == ("Linear_0", "backward", "backward")


def test_phases_add_up_to_the_step_and_are_those_of_the_marks(step):
    rows = step.table("steps").filter(pl.col("step") == 1)
    walls = dict(rows.select("phase", "wall_ns").iter_rows())
    assert walls == {
        "step": 1_000_000,
        "data": 100_000,
        "transfer": 20_000,
        "forward": 200_000,
        "backward": 200_000,
        "optimizer": 100_000,
        "other": 380_000,
    }


def test_self_times_of_modules_and_the_rest_add_up_to_forward_and_backward(step):
    spans = step.table("spans").filter((pl.col("step") == 2) & (pl.col("kind") != "stage"))
    summed = dict(spans.group_by("direction").agg(pl.col("self_ns").sum()).iter_rows())
    assert summed == {"forward": 200_000, "backward": 200_000}
    rows = {(r["path"], r["direction"]): r for r in spans.iter_rows(named=True) if r["kind"] == "module"}
    assert rows["", "forward"]["total_ns"] == 200_000
    assert rows["Conv2d_0", "forward"]["self_ns"] == 80_000
    assert rows["Conv2d_0", "forward"]["device_self_ns"] == 40_000
    assert rows["Conv2d_0", "backward"]["device_self_ns"] == 90_000
    assert rows["Linear_0", "backward"]["self_ns"] == 60_000  # its node and the gradient's accumulation


def checkpointed() -> list[dict]:
    """A net of two parts; the engine runs the first again on its own thread, and counts from 4 as well."""
    engine, main, own = "autograd::engine::evaluate_function", {"Fwd_thread_id": 1}, {"Fwd_thread_id": 2}
    return [
        event("user_annotation", "ProfilerStep#1", 0, 300),
        event("python_function", "nn.Module: Net_0", 0, 80),
        event("python_function", "nn.Module: Block_0", 5, 30),
        event("python_function", "nn.Module: Conv2d_0", 10, 20),
        event("cpu_op", "CheckpointFunction", 12, 10, sequence=3, Fwd_thread_id=0),
        event("python_function", "nn.Module: Linear_0", 40, 30),
        event("cpu_op", "aten::linear", 45, 10, sequence=4, Fwd_thread_id=0),
        event("cpu_op", f"{engine}: LinearBackward0", 100, 20, AUTOGRAD, sequence=4, **main),
        event("cpu_op", f"{engine}: CheckpointFunctionBackward", 120, 100, AUTOGRAD, sequence=3, **main),
        event("python_function", "nn.Module: Block_0", 125, 40, AUTOGRAD),
        event("python_function", "nn.Module: Conv2d_0", 130, 30, AUTOGRAD),
        event("cpu_op", "aten::conv2d", 135, 10, AUTOGRAD, sequence=4, Fwd_thread_id=0),
        *launch(1, 137, 140, 5, AUTOGRAD, name="again"),
        event("cpu_op", f"{engine}: ConvBackward0", 170, 30, AUTOGRAD, sequence=4, **own),
        *launch(2, 175, 180, 5, AUTOGRAD, name="back"),
    ]  # fmt: skip


def test_a_module_run_again_in_backward_is_recompute_and_has_time_of_its_own(tmp_path):
    found = read_events(tmp_path, checkpointed())
    device = found.table("device_events").select("name", "direction", "module", "stage")
    assert device.rows() == [
        ("again", "recompute", "Block_0.Conv2d_0", "Block_0"),
        ("back", "backward", "Block_0.Conv2d_0", "Block_0"),
    ]
    spans = found.table("spans").filter(pl.col("kind") == "module")
    rows = {(row["path"], row["direction"]): row for row in spans.iter_rows(named=True)}
    assert rows["Block_0", "recompute"]["total_ns"] == 40_000
    assert rows["Block_0.Conv2d_0", "recompute"]["self_ns"] == 30_000
    assert rows["Block_0.Conv2d_0", "backward"]["self_ns"] == 60_000, "without what ran again in it"
    assert rows["Linear_0", "backward"]["self_ns"] == 20_000
    assert rows["", "recompute"]["total_ns"] == 40_000 and rows["", "recompute"]["self_ns"] == 0


def test_what_runs_again_is_counted_once_in_the_backward_phase(tmp_path):
    found = read_events(tmp_path, checkpointed())
    phases = dict(found.table("steps").select("phase", "wall_ns").iter_rows())
    spans = found.table("spans").filter(pl.col("direction") != "forward")
    for kinds in (["module", "region", "outside"], ["stage", "outside"]):
        assert spans.filter(pl.col("kind").is_in(kinds))["self_ns"].sum() == phases["backward"]


def test_the_figures_of_an_imported_run_tell_how_long_modules_were_run_again(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": checkpointed()}))
    (run,) = run_import([path], tmp_path).runs
    modules = {module.path: module for module in summarize(run).modules}
    assert modules["Block_0"].recompute_ms == pytest.approx(0.04)


def test_kernels_of_collectives_belong_to_no_layer(tmp_path):
    name = "ncclDevKernel_AllReduce_Sum_f32"
    events = training_step() + launch(190, 1557.5, 1650, 80, AUTOGRAD, name)
    found = read_events(tmp_path, events)
    rows = {row["name"]: row for row in found.table("device_events").iter_rows(named=True)}
    assert rows["accumulate"]["module"] == "Linear_0"
    assert (rows[name]["module"], rows[name]["stage"], rows[name]["communication"]) == (None, None, True)
    spans = found.table("spans").filter((pl.col("path") == "Linear_0") & (pl.col("direction") == "backward"))
    assert set(spans["device_self_ns"]) == {65_000}


def test_kernels_without_a_launch_record_stay_and_are_counted(tmp_path):
    events = [
        event("user_annotation", "ProfilerStep#1", 0, 100),
        event("cpu_op", "aten::mm", 10, 20, external=5),
        event("kernel", "lost", 20, 5, STREAM, correlation=99, device=0, stream=STREAM),
        event("kernel", "named", 30, 5, STREAM, correlation=98, external=5, device=0, stream=STREAM),
        *launch(1, 50, 60, 5, name="alone"),
    ]
    found = read_events(tmp_path, events)
    rows = {row["name"]: row for row in found.table("device_events").iter_rows(named=True)}
    assert rows["lost"]["launch_ns"] is None and rows["lost"]["operator"] is None
    assert rows["named"]["launch_ns"] is None and rows["named"]["operator"] == "aten::mm"
    assert rows["alone"]["launch_ns"] == 50_000 and rows["alone"]["operator"] is None
    assert [row["step"] for row in rows.values()] == [1, 1, 1]
    assert found.sink.counts == {
        "device events without a launch record": 2,
        "device events launched outside of operators": 1,
    }


def test_without_step_marks_the_optimizer_makes_the_steps_and_then_the_loader(tmp_path):
    unmarked = [
        one for one in training_step() + training_step(2000.0, 2) if "ProfilerStep" not in one["name"]
    ]
    found = read_events(tmp_path, unmarked)
    steps = found.table("steps").filter(pl.col("phase") == "step")
    assert steps["start_ns"].to_list() == [1_000_000, 1_900_000]
    assert steps["wall_ns"].to_list() == [900_000, 1_000_000]
    assert any("optimizer" in note for note in found.sink.notes)
    without = [one for one in unmarked if "Optimizer" not in one["name"]]
    starts = read_events(tmp_path, without).table("steps").filter(pl.col("phase") == "step")["start_ns"]
    assert starts.to_list() == [1_000_000, 2_000_000]
    alone = read_events(tmp_path, launch(1, 1, 2, 3))
    assert any(text.startswith("step times") for text in alone.sink.unknown)


def test_start_up_is_no_part_of_the_first_step_that_the_optimizer_ends(tmp_path):
    unmarked = [
        one
        for number in (1, 2, 3)
        for one in training_step(number * 1000.0, number)
        if "ProfilerStep" not in one["name"]
    ]
    start_up = [event("cpu_op", "aten::normal_", 1, 500), *unmarked]
    found = read_events(tmp_path, start_up)
    steps = found.table("steps").filter(pl.col("phase") == "step")
    assert steps["start_ns"].to_list() == [1_000_000, 1_900_000, 2_900_000]
    assert any("the first begins where its batch was asked for" in note for note in found.sink.notes)
    without_loader = [one for one in start_up if "DataLoader" not in one["name"]]
    found = read_events(tmp_path, without_loader)
    steps = found.table("steps").filter(pl.col("phase") == "step")
    assert steps["start_ns"].to_list() == [1_900_000, 2_900_000]
    assert any("start-up and in no step" in note for note in found.sink.notes)


def test_a_call_at_the_rounded_end_of_its_operator_still_belongs_to_it(tmp_path):
    events = [event("cpu_op", "aten::add", 10, 5), *launch(1, 15, 20, 5), event("cpu_op", "aten::mul", 40, 5)]
    assert read_events(tmp_path, events).table("device_events")["operator"].to_list() == ["aten::add"]


def test_backward_on_the_loop_s_own_thread_is_backward_too(tmp_path):
    on_one_thread = [
        {**one, "tid": MAIN if one["tid"] == AUTOGRAD else one["tid"]} for one in training_step()
    ]
    found = kernels(read_events(tmp_path, on_one_thread))
    assert found["conv_back", 1][1:4] == ("Conv2d_0", "backward", "backward")
    assert found["conv", 1][2] == "forward"


def test_copies_know_their_direction_and_size_and_collectives_are_communication(tmp_path):
    events = [
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 5, 2, STREAM, device=0, stream=3, bytes=64),
        event("kernel", "ncclKernel_AllReduce_RING_LL_Sum_float", 9, 2, STREAM, device=1, stream=9),
        event("cuda_sync", "Stream Sync", 12, 2, STREAM, device=1, stream=9),
    ]
    device = read_events(tmp_path, events).table("device_events")
    assert device["copy"].to_list() == ["DtoH", None, None]
    assert device["bytes"].to_list() == [64, None, None]
    assert device["communication"].to_list() == [False, True, False]
    assert device["kind"].to_list() == ["copy", "kernel", "sync"]
    assert device["device"].to_list() == [0, 1, 1]

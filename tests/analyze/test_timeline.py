"""Steps to look into: which are chosen, how their spans nest, and that nothing is lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from detscope.analyze.timeline.figures import SpanNames, TimelineWindow, find_depths, make_lane
from detscope.analyze.timeline.read import read_timeline
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter

MS = 1_000_000


def span_rows(*rows: tuple[str, int, int]) -> pl.DataFrame:
    names, starts, lengths = zip(*rows, strict=True)
    columns = {"name": names, "start_ns": starts, "wall_ns": lengths}
    return pl.DataFrame(columns).with_columns(group=pl.lit("forward"))


def lane_of(*rows: tuple[str, int, int], most: int = 100, end: int = 1000) -> tuple[SpanNames, Any]:
    known = SpanNames(most_spans=most)
    return known, make_lane("Modules", "module", span_rows(*rows), TimelineWindow(0, end), known)


def test_a_span_inside_another_lies_one_deeper_and_one_after_it_does_not() -> None:
    starts, lengths = np.array([0, 0, 10, 40, 60]), np.array([50, 10, 20, 10, 5])
    assert find_depths(starts, lengths).tolist() == [0, 1, 1, 1, 0]


def test_spans_that_overlap_without_nesting_take_no_more_rows_than_overlap_at_once() -> None:
    starts = np.arange(0, 1000, 10)
    assert find_depths(starts, np.full(100, 25)).max() == 2


def test_spans_of_one_interval_keep_their_order_from_outside_to_inside() -> None:
    known, lane = lane_of(("model", 0, 100), ("model.head", 0, 100), ("model.head.conv", 0, 100))
    assert [list(known.names)[place][0] for place in lane.names] == ["model", "model.head", "model.head.conv"]
    assert lane.depths.tolist() == [0, 1, 2]


def test_own_times_add_up_to_the_outermost_spans() -> None:
    _, lane = lane_of(("a", 0, 100), ("a.b", 10, 30), ("a.b.c", 12, 8), ("a.d", 50, 50), ("e", 100, 20))
    assert lane.own_lengths.tolist() == [20, 22, 8, 50, 20]
    assert lane.own_lengths.sum() == 120


def test_of_too_many_spans_the_shortest_are_left_out_and_counted() -> None:
    _, lane = lane_of(("a", 0, 100), ("b", 100, 3), ("c", 110, 5), ("d", 120, 50), most=2)
    assert (len(lane), lane.left_out, lane.left_out_ns) == (2, 2, 8)


def test_spans_that_only_reach_into_the_step_are_drawn_and_others_are_not() -> None:
    _, lane = lane_of(
        ("before", -20, 10), ("reaches in", -20, 30), ("reaches out", 990, 50), ("after", 1000, 5)
    )
    assert lane.starts.tolist() == [-20, 990]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Six recorded steps of 10, 30, 12, 11, 13, 12 ms, all drawn but the one of 13 ms."""
    writer = RunWriter(tmp_path, "train", "small", {"device": "cpu", "level": "modules"})
    begin = 0
    for step, ms in enumerate((10, 30, 12, 11, 13, 12)):
        writer.append_rows("steps", [(step, 0, "recorded", "step", begin, ms * MS, None)])
        writer.append_rows(
            "steps",
            [(step, 0, "recorded", phase, begin, ms * MS // 2, None) for phase in ("forward", "backward")],
        )
        if ms != 13:
            half = ms * MS // 2
            writer.append_rows(
                "timeline",
                [
                    (step, "steps", f"step {step}", "", begin, ms * MS),
                    (step, "phases", "forward", "", begin, half),
                    (step, "phases", "backward", "", begin + half, half),
                    (step, "modules", "head", "forward", begin, half),
                    (step, "modules", "head", "backward", begin + half, half),
                ],
            )
        writer.append_rows("loader", [(step + 2, 0, 7, "batch", begin + MS, 4 * MS, 2, 0, None, None)])
        writer.append_rows("loader", [(step + 2, 0, 7, "decode", begin + MS, 3 * MS, 2, None, None, None)])
        begin += ms * MS
    writer.append_rows("nodes", [("module", "head", "Conv2d", "head", 12)])
    writer.close_run("ok", None)
    return writer.folder


def test_the_median_the_slowest_and_the_first_step_are_drawn(run_folder: Path) -> None:
    found = read_timeline(load_run(run_folder))
    assert found is not None
    assert {step.step: step.title for step in found.steps} == {
        2: "the median step",
        1: "the slowest",
        0: "the first recorded",
    }
    assert (found.measured, found.drawn) == (6, 5)


def test_a_step_has_the_spans_of_its_tables_and_what_the_loader_made_meanwhile(run_folder: Path) -> None:
    found = read_timeline(load_run(run_folder))
    assert found is not None
    step = found.steps[0]
    lanes = {lane.title: lane for lane in step.lanes}
    assert list(lanes) == ["Phases", "Modules", "Loader worker 0"]
    modules = lanes["Modules"]
    assert modules.starts.tolist() == [0, 6 * MS]
    assert modules.lengths.tolist() == [6 * MS, 6 * MS]
    assert [found.groups[group] for group in modules.groups] == ["forward", "backward"]
    about = dict(found.names[modules.names[0]].about)
    assert (about["type"], about["parameters"]) == ("Conv2d", "12")
    batches = lanes["Loader worker 0"]
    assert [found.names[name].text for name in batches.names] == ["batch of step 4", "decode"]
    assert batches.depths.tolist() == [0, 1]


def test_names_tell_the_lines_that_a_census_saw_and_where_a_part_is_called(tmp_path: Path) -> None:
    places = {"EMA.update()": {"own": {"function": "main", "file": "train.py", "line": 9}, "inside": None}}
    info = {"device": "cpu", "level": "ops", "part_places": places}
    writer = RunWriter(tmp_path, "run", "small", info)
    writer.append_rows("steps", [(step, 0, "recorded", "step", step * MS, MS, None) for step in range(3)])
    for name, track in (("head", "modules"), ("EMA.update()", "modules"), ("aten::item", "operators")):
        writer.append_rows("timeline", [(1, track, name, "forward", MS, MS // 2)])
    writer.append_rows("nodes", [("module", "head", "Head", "head", 12)])
    writer.append_rows("nodes", [("part", "EMA.update()", "", "ema", 0)])
    own = ("train.py", 7, "main")
    for step in (3, 4):
        rest = (1, 0, 0, "x = y.item()", "", "")
        writer.append_rows(
            "census",
            [
                (step, "forward", "read", "aten::item", "net.py", 41, "Head.forward", *own, 6, *rest),
                (
                    step,
                    "forward",
                    "read",
                    "aten::item",
                    "net.py",
                    50,
                    "check.<locals>.<listcomp>",
                    *own,
                    2,
                    *rest,
                ),
                (step, "forward", "launch", "aten::add", "net.py", 42, "Head.decode", *own, 3, *rest),
            ],
        )
    writer.close_run("ok", None)
    found = read_timeline(load_run(writer.folder))
    assert found is not None
    about = {name.text: dict(name.about) for name in found.names}
    assert about["aten::item"]["called at"].startswith("net.py:41 Head.forward (6 per step), net.py:50 check")
    lines = "net.py:41 Head.forward (6 per step), net.py:42 Head.decode (3 per step)"
    assert about["head"]["busiest lines of its class"] == lines
    assert about["EMA.update()"]["line"] == "train.py:9 main"


def test_a_step_without_a_curve_of_memory_says_why(run_folder: Path, tmp_path: Path) -> None:
    found = read_timeline(load_run(run_folder))
    assert found is not None
    assert {step.memory_why for step in found.steps} == {"--memory follows its blocks, in steps of their own"}


def test_a_run_without_spans_has_nothing_to_look_into(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "train", "small", {"device": "cpu", "level": "phases"})
    writer.append_rows("steps", [(0, 0, "recorded", "step", 0, MS, None)])
    writer.close_run("ok", None)
    assert read_timeline(load_run(writer.folder)) is None

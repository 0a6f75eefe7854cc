"""Which steps are kept for drawing: few, and in the end the slowest and the median one."""

from __future__ import annotations

from pathlib import Path
from random import Random

import polars as pl

from detscope.record.steps.drawn import SAMPLED_STEPS, DrawnSteps, KeptEvents
from detscope.record.steps.nodes import NodeTable
from detscope.record.steps.tables import OpenStep, StepTables
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter

EVENTS = list(range(30))


def kept_steps(drawn: DrawnSteps) -> list[KeptEvents]:
    return list(drawn._all_kept())


def offer(drawn: DrawnSteps, walls: list[int], mode: str = "recorded") -> None:
    for index, wall_ns in enumerate(walls):
        drawn.offer_step(index, mode, 1000 * index, 1000 * index + wall_ns, EVENTS)


def test_of_a_short_run_the_slowest_and_the_median_step_are_chosen_exactly() -> None:
    drawn = DrawnSteps(wanted=True)
    offer(drawn, [500, 300, 900, 310, 320])
    assert [kept.index for kept in drawn.choose_steps()] == [2, 4]


def test_of_a_long_run_few_steps_are_kept_the_slowest_of_all_is_one_and_one_is_near_the_median() -> None:
    drawn = DrawnSteps(wanted=True)
    walls = [Random(1).randrange(100, 900)] + [Random(index).randrange(100, 900) for index in range(5000)]
    walls[4321] = 950
    offer(drawn, walls)
    assert len(kept_steps(drawn)) <= SAMPLED_STEPS + 1
    chosen = {kept.index: kept.wall_ns for kept in drawn.choose_steps()}
    assert chosen.pop(4321) == 950
    ((_, wall_ns),) = chosen.items()
    below = sum(wall < wall_ns for wall in walls) / len(walls)
    assert 0.4 < below < 0.6


def test_steps_with_phases_alone_are_not_kept_where_others_have_modules() -> None:
    drawn = DrawnSteps(wanted=True)
    offer(drawn, [500, 600])
    drawn.offer_step(2, "recorded", 0, 9999, EVENTS[:6])
    assert {kept.index for kept in kept_steps(drawn)} == {0, 1}


def test_the_last_step_with_memory_is_chosen_too_and_bare_ones_never() -> None:
    drawn = DrawnSteps(wanted=True)
    offer(drawn, [100, 100, 100], "memory")
    offer(drawn, [100], "bare")
    assert [kept.index for kept in drawn.choose_steps()] == [2]


def test_nothing_is_kept_where_nothing_is_to_be_drawn() -> None:
    drawn = DrawnSteps(wanted=False)
    offer(drawn, [100, 200])
    assert drawn.choose_steps() == []


def test_the_spans_of_the_chosen_steps_are_in_the_timeline_and_sum_up_to_their_tables(tmp_path: Path) -> None:
    nodes = NodeTable()
    root = nodes.add_node("module", "", "Root").number
    head = nodes.add_node("module", "head", "Head", "head").number
    forward, backward = (nodes.phase_node(phase).number for phase in ("forward", "backward"))
    codes = [4 * forward, 4 * root, 4 * head, 4 * head + 1, 4 * root + 1, 4 * forward + 1]
    codes += [4 * backward, 4 * head + 2, 4 * backward + 1]
    writer = RunWriter(tmp_path, "train", "model", {})
    tables = StepTables(writer, nodes, 2)
    for index, gap in enumerate((10, 11, 17, 12, 40, 13, 16, 14, 15)):
        begin = 1_000_000 * index
        times = [begin + gap * place for place in range(1, len(codes) + 1)]
        step = OpenStep(index, 0, "recorded", begin, begin + 5, 0)
        step.events = [number for pair in zip(codes, times, strict=True) for number in (*pair, -1)]
        step.end_ns = times[-1] + gap
        tables.add_step(step)
    tables.close_tables([])
    writer.close_run("ok")
    run = load_run(writer.folder)
    drawn = run.table("timeline")
    assert drawn["step"].unique().sort().to_list() == [0, 1, 4, 7]  # the first two, the slowest, the median
    spans = run.table("spans").filter(pl.col("step").is_in([0, 1, 4, 7]) & (pl.col("kind") == "module"))
    told = {
        (step, path or "Root", direction): total_ns
        for step, path, direction, total_ns in spans.select(
            "step", "path", "direction", "total_ns"
        ).iter_rows()
    }
    sums = drawn.filter(pl.col("track") == "modules").group_by("step", "name", "direction")
    assert {tuple(row[:3]): row[3] for row in sums.agg(pl.col("wall_ns").sum()).iter_rows()} == told

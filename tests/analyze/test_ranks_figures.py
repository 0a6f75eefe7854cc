"""Figures of several ranks, from tables whose answers are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from detscope.analyze.ranks.collectives import account_collectives
from detscope.analyze.ranks.figures import measure_scaling
from detscope.analyze.ranks.straggler import RankFigures, RankTotal
from detscope.analyze.summary import RunSummary, summarize
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter
from detscope.sessions.ranks.merge import RankTables, merge_ranks, take_tables

MS = 1_000_000
NOTHING_CALLED = {"phase": None, "group": None, "blocked_after_ns": None, "blocked_ns": None}
CONTENT = {"images": 2, "boxes": 6, "pixels": 1000, "proposals": 100}


def write_rank(
    folder: Path, rank: int, phases: dict[str, int], talks: list[tuple[str, int, int]], **content: int
) -> Path:
    """Eight steps of 100 ms; talks are (kind, begin, end) in ms of the step."""
    writer = RunWriter(folder, "train", f"rank{rank}", {"device": "cpu", "level": "phases"})
    inside = {**CONTENT, **content}
    for step in range(8):
        start = step * 100 * MS
        whole = (step, 0, "recorded", "step", start, sum(phases.values()) * MS, None)
        rows = [(step, 0, "recorded", name, start, ms * MS, None) for name, ms in phases.items()]
        writer.append_rows("steps", [whole, *rows])
        has = (step, inside["images"], inside["boxes"], inside["pixels"], None, None, inside["proposals"])
        writer.append_rows("content", [(*has, None, None, 0, False, "")])
        for number, (kind, begin, end) in enumerate(talks):
            row = (rank, step, kind, number, 4000, start + begin * MS, (end - begin) * MS)
            row = (*row, None, None, None, None)
            writer.append_rows("communication", [row])
    writer.close_run("ok")
    return writer.folder


def phases(data: int, forward: int, backward: int) -> dict[str, int]:
    rest = 100 - data - forward - backward
    return {
        "data": data,
        "transfer": 0,
        "forward": forward,
        "backward": backward,
        "optimizer": rest,
        "other": 0,
    }


def merged(tmp_path: Path, first: Path, second: Path, **facts: Any) -> RunSummary:
    members = [take_tables(load_run(run), rank, facts) for rank, run in enumerate((first, second))]
    merge_ranks(first, members, 2)
    return summarize(first)


def test_a_bucket_that_is_back_before_the_last_is_handed_over_is_hidden():
    frame = pl.DataFrame(
        {
            "kind": ["gradients", "gradients", "buffers"],
            "bucket": [0, 1, 0],
            "start_ns": [60, 80, 10],
            "wall_ns": [15, 10, 5],
            **NOTHING_CALLED,
        }
    )
    talk = account_collectives(frame)
    assert talk.busy_ns == 30
    assert talk.exposed == {"forward": 5, "backward": 10}


def test_of_a_bucket_that_is_still_under_way_only_the_rest_is_exposed():
    columns = {"kind": ["gradients"] * 2, "bucket": [0, 1], "start_ns": [60, 80], "wall_ns": [35, 10]}
    frame = pl.DataFrame(columns | NOTHING_CALLED)
    talk = account_collectives(frame)
    assert (talk.busy_ns, talk.exposed_ns) == (35, 15)


def test_a_rank_that_waits_for_its_data_is_named_with_data_as_the_reason(tmp_path):
    waits = write_rank(tmp_path, 0, phases(0, 30, 60), [("gradients", 50, 90)])
    slow = write_rank(tmp_path, 1, phases(40, 30, 20), [("gradients", 88, 90)])
    summary = merged(tmp_path, waits, slow)
    assert summary.ranks.count == 2
    held = summary.ranks.straggler
    assert (held.rank, held.reason) == (1, "data")
    assert [row.work_ms for row in summary.ranks.rows] == [pytest.approx(60), pytest.approx(98)]
    assert held.excess_ms == pytest.approx(38)
    assert (held.slowest_in, held.lost_ms) == (1, pytest.approx(19))
    assert summary.ranks.rows[0].wait_for_others_ms == pytest.approx(38)
    assert summary.ranks.communication.share == pytest.approx(0.21)
    assert summary.ranks.communication.hidden_share == 0
    assert summary.verdict.startswith("rank 1 holds the others up by 38.0 ms (38 %): data takes 40.0 ms more")


def test_a_rank_with_more_in_its_images_is_named_with_content_as_the_reason(tmp_path):
    full = write_rank(tmp_path, 0, phases(0, 50, 40), [("gradients", 88, 90)], boxes=30, pixels=1050)
    waits = write_rank(tmp_path, 1, phases(0, 20, 70), [("gradients", 50, 90)])
    summary = merged(tmp_path, full, waits)
    assert (summary.ranks.straggler.rank, summary.ranks.straggler.reason) == (0, "content")
    assert "5.00 x the boxes" in summary.ranks.straggler.why
    assert summary.ranks.imbalance.boxes.above_mean == pytest.approx(30 / 18 - 1)
    assert summary.ranks.imbalance.boxes.ranks == (RankTotal(rank=0, total=240), RankTotal(rank=1, total=48))


def test_a_rank_that_is_slow_with_like_content_is_blamed_itself(tmp_path):
    slow = write_rank(tmp_path, 0, phases(0, 50, 40), [("gradients", 88, 90)])
    waits = write_rank(tmp_path, 1, phases(0, 20, 70), [("gradients", 50, 90)])
    found = merged(tmp_path, slow, waits).ranks.straggler
    assert (found.rank, found.reason) == (0, "forward")
    assert "slower or busier" in found.why


def test_waiting_inside_of_a_phase_is_not_taken_for_work_of_that_phase(tmp_path):
    slow = write_rank(tmp_path, 0, phases(0, 32, 60), [("gradients", 90, 92)])
    waits = write_rank(tmp_path, 1, phases(0, 30, 62), [("gradients", 52, 92)])
    found = merged(tmp_path, slow, waits).ranks.straggler
    assert (found.rank, found.reason) == (0, "backward")
    excess = {phase.name: phase.ms for phase in found.phase_excess}
    assert excess["backward"] == pytest.approx(36)


def test_even_ranks_have_no_straggler_and_the_verdict_stays_as_it_was(tmp_path):
    runs = [write_rank(tmp_path, rank, phases(2, 40, 50), [("gradients", 80, 92)]) for rank in (0, 1)]
    summary = merged(tmp_path, *runs)
    assert summary.ranks.straggler.rank is None
    assert "rank" not in summary.verdict
    row = summary.ranks.rows[1]
    assert row.images_per_s == pytest.approx(CONTENT["images"] / row.step_ms * 1e3)
    assert summary.images_per_s == pytest.approx(2 * row.images_per_s), "of all ranks"


def test_without_collectives_their_share_is_not_zero_but_unknown(tmp_path):
    runs = [write_rank(tmp_path, rank, phases(2, 40, 50), []) for rank in (0, 1)]
    summary = merged(tmp_path, *runs)
    assert summary.ranks.communication.share is None
    assert summary.ranks.communication.why
    assert summary.ranks.rows[0].hidden_share is None


def test_times_of_a_rank_on_another_host_are_put_on_rank_0s_clock_with_its_drift(tmp_path):
    first = write_rank(tmp_path, 0, phases(0, 30, 60), [("gradients", 50, 90)])
    second = write_rank(tmp_path, 1, phases(0, 30, 60), [("gradients", 50, 90)])
    clocks = [
        {"time_ns": 0, "offset_ns": 5000 * MS, "error_ns": 40_000},
        {"time_ns": 700 * MS, "offset_ns": 5007 * MS, "error_ns": 60_000},
    ]
    members = [
        take_tables(load_run(first), 0, {"boot": "a", "host": "one"}),
        take_tables(load_run(second), 1, {"boot": "b", "host": "two", "clocks": clocks}),
    ]
    merge_ranks(first, members, 2)
    steps = load_run(first).table("rank_steps").filter((pl.col("rank") == 1) & (pl.col("phase") == "step"))
    assert steps["start_ns"].to_list() == [5000 * MS + step * 101 * MS for step in range(8)]
    found = summarize(first).ranks.clocks
    assert (found.one_clock, found.error_us) == (False, 60)


def test_a_rank_that_delivered_nothing_is_said_to_be_missing_and_the_run_is_partial(tmp_path):
    first = write_rank(tmp_path, 0, phases(0, 30, 60), [("gradients", 50, 90)])
    merge_ranks(first, [take_tables(load_run(first), 0, {})], 2)
    run = load_run(first)
    assert (run.status, run.info["reason"]) == ("partial", "rank 1 delivered nothing")
    assert "cannot tell" in summarize(first).ranks.straggler.why


def test_tables_of_a_rank_travel_as_bytes(tmp_path):
    from detscope.sessions.ranks.merge import pack_tables, unpack_tables

    run = write_rank(tmp_path, 1, phases(0, 30, 60), [("gradients", 50, 90)])
    sent = take_tables(load_run(run), 1, {"host": "zwei", "clocks": []})
    came = unpack_tables(pack_tables(sent))
    assert isinstance(came, RankTables)
    assert (came.rank, came.facts) == (1, sent.facts)
    assert all(came.frames[name].equals(frame) for name, frame in sent.frames.items())


def test_scaling_is_told_against_one_rank_where_that_is_known():
    unknown = {"steps": 8, "ci95": None, "mean_step_ms": None, "phases": (), "work_ms": None}
    rows = [
        RankFigures(rank=rank, step_ms=step_ms, images_per_step=2.0, **unknown)
        for rank, step_ms in enumerate((100.0, 98.0))
    ]
    assert measure_scaling(rows, {"images_per_s": 25.0}).efficiency == pytest.approx(0.8)
    alone = measure_scaling(rows, None)
    assert alone.efficiency is None
    assert alone.images_per_s == pytest.approx(40)
    assert alone.why

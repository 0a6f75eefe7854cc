"""Memory timelines and allocator snapshots recorded elsewhere."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from detscope.ingest.formats import find_format, memory_timeline, snapshot
from detscope.ingest.sink import Sink


def read_with(module, path: Path) -> tuple[dict[str, pl.DataFrame], Sink]:
    frames: dict[str, list[pl.DataFrame]] = {}
    sink = Sink(lambda table, frame: frames.setdefault(table, []).append(frame))
    module.PART.read(path, sink)
    return {table: pl.concat(parts) for table, parts in frames.items()}, sink


def levels_by_moment(changes: pl.DataFrame) -> list[dict[str, int]]:
    """What was allocated after the last change of every moment, by category."""
    levels: list[dict[str, int]] = []
    now: dict[str, int] = dict.fromkeys(memory_timeline.CATEGORIES, 0)
    previous: object = object()
    for time_ns, category, delta in changes.select("time_ns", "category", "delta_bytes").iter_rows():
        if time_ns != previous:
            levels.append({})
            previous = time_ns
        now[category] += delta
        levels[-1] = dict(now)
    return levels


def test_the_eight_categories_at_index_744_and_the_peak_at_762(recorded: Path) -> None:
    path = recorded / "traces/memory_timeline/memory_timeline.raw.json.gz"
    assert find_format(path).name == "memory timeline"
    tables, sink = read_with(memory_timeline, path)
    levels = levels_by_moment(tables["memory_changes"])
    assert levels[744] == {
        "parameters": 102440608,
        "optimizer": 102228128,
        "inputs": 19395584,
        "temporary": 0,
        "activations": 2618160128,
        "gradients": 58417152,
        "autograd detail": 41811968,
        "unknown": 25494440,
    }
    totals = [sum(level.values()) for level in levels]
    assert (max(totals), totals.index(max(totals))) == (3082832104, 762)
    assert sink.info["moments"] == len(levels) == 7721
    assert tables["memory_changes"].height == 16845


def test_a_snapshot_that_began_late_says_what_it_cannot_know(recorded: Path) -> None:
    path = recorded / "traces/snapshot/memory_snapshot.pickle"
    assert find_format(path).name == "memory snapshot"
    tables, sink = read_with(snapshot, path)
    facts = sink.info["memory"][0]
    assert (facts["segments"], facts["entries"]) == (96, 6486)
    assert (facts["live_bytes"], facts["reserved_bytes"]) == (3072871424, 4238344192)
    assert facts["unknown_frees"] == 222
    assert facts["history_peak_bytes"] == 1999716608
    assert "lower bound" in facts["history_peak_is"]
    verdict = (
        "recording began late: 222 frees of unknown blocks; the true peak cannot be known from this file"
    )
    assert verdict in sink.notes
    assert f"true peak: {verdict}" in sink.unknown
    blocks = tables["memory"]
    assert blocks.filter(pl.col("free_ns").is_null())["bytes"].sum() == 3072871424
    assert blocks.filter(pl.col("alloc_ns").is_null() & pl.col("free_ns").is_not_null()).height == 222
    reserved = tables["memory_levels"].filter(level="reserved")
    assert reserved["bytes"].to_list() == [4238344192]


def test_stacks_name_the_line_and_not_the_machine(recorded: Path) -> None:
    tables, _ = read_with(snapshot, recorded / "traces/snapshot/memory_snapshot.pickle")
    stacks = tables["memory"]["stack"].drop_nulls()
    assert stacks.str.contains(r"cs336_basics/model\.py:\d+ forward").any()
    assert not stacks.str.contains("/home/|^/").any()

"""The memory account from hand-made tables: every byte is known beforehand."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detscope.analyze.memory.account import memory_account
from detscope.analyze.memory.blocks import CATEGORIES, ledger_of
from detscope.analyze.memory.changes import account_of_changes, categories_at
from detscope.analyze.memory.iterations import iteration_rows
from detscope.analyze.memory.timeline import peak_tree, step_timeline
from detscope.analyze.summary import summarize
from detscope.runs.writer import polars_schema
from memory_samples import BATCH, a_step, block, made_run, state, write_run


def memory_figures(run) -> dict:
    """The account as `--json` has it."""
    return json.loads(msgspec.json.encode(memory_account(run)))


def by_name(rows: list[dict]) -> dict[str, int]:
    return {row["name"]: row["bytes"] for row in rows}


PEAK = 700 + 600 + 700 + 1000 + 6000 + 2500


def test_the_peak_its_moment_and_its_categories_are_exact(tmp_path):
    found = memory_figures(made_run(tmp_path))
    assert found["peak_bytes"] == PEAK
    assert found["at"] | {"time_ns": 0} == {
        "index": None,
        "step": 0,
        "mode": "recorded",
        "time_ns": 0,
        "ms_into_step": 0.66,
        "phase": "backward",
        "stage": None,
        "operator": None,
        "direction": "backward",
        "module": "body.0.conv2",
    }
    assert by_name(found["categories"]) == {
        "parameters": 700,
        "gradients": 600,
        "optimizer": 700,
        "inputs": 1000,
        "activations": 6000,
        "temporary": 2500,
        "workspace": 0,
        "unknown": 0,
    }
    assert found["unknown_share"] == 0.0
    assert found["steps"] | {"peaks": None} == {
        "n": 2,
        "p50_bytes": PEAK,
        "ci95_bytes": None,
        "spread": None,
        "lowest_bytes": PEAK,
        "highest_bytes": PEAK,
        "peaks": None,
        "why": None,
    }


def test_modules_and_tensors_at_the_peak_add_up_to_it(tmp_path):
    found = memory_figures(made_run(tmp_path))
    assert sum(row["bytes"] for row in found["modules"]) == PEAK
    assert found["modules"][0]["path"] == "body.0.conv2"
    assert by_name(found["modules"][0]["categories"]) == {
        "activations": 2000,
        "gradients": 200,
        "optimizer": 200,
        "parameters": 200,
        "temporary": 2000,
    }
    assert [row["bytes"] for row in found["largest"][:5]] == [2000, 2000, 2000, 2000, 1000]
    assert found["largest"][0]["shape"] == "2x8"
    tree = peak_tree(made_run(tmp_path / "again"))
    assert tree is not None and sum(leaf[3] for leaf in tree.leaves) == PEAK


def test_phases_and_stages_have_their_own_highest_level(tmp_path):
    found = memory_figures(made_run(tmp_path))
    assert {row["name"]: row["peak_bytes"] for row in found["phases"]} == {
        "transfer": 3100,
        "forward": 9900,
        "backward": PEAK,
    }
    assert {row["name"]: row["peak_bytes"] for row in found["stages"]} == {"body": 9100, "head": 9900}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 1000),
            st.one_of(st.none(), st.integers(0, 40)),
            st.one_of(st.none(), st.integers(0, 40)),
            st.sampled_from(CATEGORIES),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_categories_add_up_to_the_level_at_every_event(lives):
    rows = []
    for size, begin, end, category in lives:
        if begin is not None and end is not None and end < begin:
            begin, end = end, begin
        rows.append(block(size, begin, end, category=category))
    schema = polars_schema("memory")
    frame = pl.DataFrame([{key: row.get(key) for key in schema} for row in rows], schema=schema)
    ledger = ledger_of(frame)
    for event in range(len(ledger.level)):
        alive = ledger.alive(event)
        assert ledger.size[alive].sum() == ledger.level[event]
        assert ledger.level[event] >= 0
    last = sum(size for size, begin, end, _ in lives if end is None)
    assert ledger.level[-1] == last


def test_at_one_moment_releases_come_before_allocations(tmp_path):
    blocks = [block(100, 10, 20, step=0), block(100, 20, 30, step=0), block(7, 25, 25, step=0)]
    found = memory_figures(write_run(tmp_path, blocks, steps=1))
    assert found["peak_bytes"] == 107


def test_warm_up_is_not_the_peak_where_steps_were_measured(tmp_path):
    run = made_run(tmp_path)
    steps = run.table("steps").with_columns(
        pl.when(pl.col("step") == 0).then(pl.lit("warmup")).otherwise("mode").alias("mode")
    )
    steps.write_parquet(run.folder / "steps.parquet")
    found = memory_figures(run)
    assert (found["at"]["step"], found["steps"]["n"]) == (1, 1)


def test_reserved_on_a_cpu_cannot_be_told_and_levels_are_never_mixed(tmp_path):
    levels = [(0, 0, "cpu", "process", 5000), (700_000, 0, "cpu", "process", 25_000)]
    levels.append((0, 0, "cpu", "worker 77", 1234))
    found = memory_figures(made_run(tmp_path, tables={"memory_levels": levels}))["levels"]
    assert found["allocated_bytes"] == PEAK
    assert (found["reserved_bytes"], found["reserved_why"]) == (None, "CPU has no caching allocator")
    assert (found["process_bytes"], found["process_growth_bytes"]) == (25_000, 20_000)
    assert found["workers"] == [{"pid": "77", "bytes": 1234}]


def test_fragmentation_is_how_much_of_the_free_cached_memory_the_largest_free_block_is_not(tmp_path):
    blocks = [row | {"device": "cuda:0"} for row in (*state(), *a_step(0))]
    levels = [(660_000, 0, "cuda:0", "reserved", 20_000), (900_000, 0, "cuda:0", "reserved", 20_000)]
    levels += [(900_000, 0, "cuda:0", "largest_free", size) for size in (10, 9000)]
    levels += [(660_000, 0, "cuda:0", "fragmented", 7), (900_000, 0, "cuda:0", "fragmented", 3000)]
    levels += [(660_000, 0, "cuda:0", "beside", 400_000), (900_000, 0, "cuda:0", "beside", 450_000)]
    run = write_run(tmp_path, blocks, steps=1, info={"device": "cuda:0"}, tables={"memory_levels": levels})
    found = memory_figures(run)["levels"]
    assert found["reserved_bytes"] == 20_000
    assert found["fragmentation"] == {
        "bytes": 20_000 - 2100,
        "share": pytest.approx(1 - 9000 / 17_900),
        "reserved_bytes": 20_000,
        "allocated_bytes": 2100,
        "fragmented_bytes": 3000,
        "largest_free_bytes": [9000, 10],
    }
    assert (found["context_bytes"], found["beside_bytes"]) == (400_000, 450_000)


def test_the_drivers_context_of_a_cpu_cannot_be_told(tmp_path):
    found = memory_figures(made_run(tmp_path))["levels"]
    assert (found["context_bytes"], found["context_why"]) == (None, "a CPU has none")


def test_the_slope_per_image_is_what_images_brought_over_the_batch(tmp_path):
    slope = memory_figures(made_run(tmp_path))["slope"]
    assert slope["bytes_per_image"] == (1000 + 6000 + 2500) / BATCH
    assert slope["fixed_bytes"] == 2000


def test_changes_recorded_elsewhere_give_the_peak_and_no_modules():
    rows = [(0, "parameters", 100), (1, "activations", 50), (2, "activations", -50), (3, "unknown", 60)]
    frame = pl.DataFrame(
        [(time, "cuda:0", category, delta) for time, category, delta in rows],
        schema=polars_schema("memory_changes"),
        orient="row",
    )
    found = json.loads(msgspec.json.encode(account_of_changes(frame)))
    assert found["peak_bytes"] == 160
    assert found["at"]["index"] == 3
    assert by_name(found["categories"]) == {"parameters": 100, "activations": 0, "unknown": 60}
    assert not found["modules"] and "not who made them" in found["modules_why"]
    assert categories_at(frame, 1) == {"parameters": 100, "activations": 50}


def test_changes_at_one_time_are_one_moment():
    rows = [(None, "parameters", 10), (None, "unknown", 5), (7, "activations", 90), (7, "activations", -50)]
    frame = pl.DataFrame(
        [(time, "cuda:0", category, delta) for time, category, delta in rows],
        schema=polars_schema("memory_changes"),
        orient="row",
    )
    found = json.loads(msgspec.json.encode(account_of_changes(frame)))
    assert (found["peak_bytes"], found["at"]["index"], found["moments"]) == (55, 1, 2)
    assert categories_at(frame, 0) == {"parameters": 10, "unknown": 5}


def test_a_file_that_began_late_gives_a_lower_bound_and_its_blocks_their_lines_of_code(tmp_path):
    rows = [
        block(900, 5, 10, category="unknown", direction=None) | {"stack": "train.py:7 step", "step": None}
    ]
    late = "true peak: recording began late"
    found = memory_figures(write_run(tmp_path, rows, steps=0, info={"cannot_tell": [late]}))
    assert found["lower_bound_why"] == "recording began late"
    assert found["modules"][0]["path"] == "train.py:7 step"
    assert memory_figures(made_run(tmp_path / "whole"))["lower_bound_why"] is None


def test_an_imported_timeline_is_summarised_as_memory(tmp_path):
    run = write_run(tmp_path, [], steps=0, tables={"memory_changes": [(0, "cuda:0", "unknown", 9)]})
    assert summarize(run).memory.peak_bytes == 9


def test_a_run_without_memory_says_nothing_of_it(tmp_path):
    assert summarize(write_run(tmp_path, [])).memory is None


def test_the_timeline_keeps_the_peak_and_adds_up_at_every_moment(tmp_path):
    timeline = step_timeline(made_run(tmp_path), columns=7)
    assert timeline is not None
    sums = np.sum([timeline.bytes[name] for name in timeline.bytes], axis=0)
    assert sums.max() == timeline.peak_bytes == PEAK
    assert timeline.ms == sorted(timeline.ms)
    assert [phase[0] for phase in timeline.phases] == ["transfer", "forward", "backward"]


def test_iterations_have_the_columns_users_know_and_feature_maps_do_not_grow(tmp_path):
    found = iteration_rows(made_run(tmp_path))
    assert found is not None
    assert found.columns == [
        *("epoch", "iteration", "peak_cached", "current_cached"),
        *("total_feature_map_usage", "total_weight_usage"),
        *("body.0.conv1.weight", "body.0.conv2.weight", "head.weight"),
        "total_layer_weight_gradient_usage",
        *("body.0.conv1.weight_grad", "body.0.conv2.weight_grad", "head.weight_grad"),
        *("intermediate_gradients", "optimizer_state", "inputs", "temporary", "workspace", "unknown"),
    ]
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    assert [row["total_feature_map_usage"] for row in rows] == [6500, 6500]
    assert [row["peak_cached"] for row in rows] == [PEAK, PEAK]
    assert [row["current_cached"] for row in rows] == [2100, 2100]
    assert rows[1]["head.weight_grad"] == 400
    assert rows[1]["total_layer_weight_gradient_usage"] == 700
    assert (rows[0]["intermediate_gradients"], rows[0]["temporary"]) == (2500, 300)


def test_hundreds_of_thousands_of_blocks_are_accounted_for_exactly(tmp_path):
    random = np.random.default_rng(0)
    count = 300_000
    begin = np.sort(random.integers(0, 10**9, count))
    life = random.integers(1, 10**7, count)
    size = random.integers(1, 10**6, count)
    schema = polars_schema("memory")
    frame = pl.DataFrame(
        {"bytes": size, "alloc_ns": begin, "free_ns": begin + life, "category": ["temporary"] * count}
    )
    missing = [
        pl.lit(None, dtype=kind).alias(name) for name, kind in schema.items() if name not in frame.columns
    ]
    ledger = ledger_of(frame.with_columns(missing).select(list(schema)))
    middle = int(np.searchsorted(ledger.time_ns, 5 * 10**8, side="right")) - 1
    alive = (begin <= 5 * 10**8) & (begin + life > 5 * 10**8)
    assert ledger.level[middle] == size[alive].sum()
    assert ledger.level[-1] == 0


@pytest.mark.parametrize("given", ["cuda", "cuda:0"])
def test_the_account_is_that_of_the_run_s_device(tmp_path, given):
    blocks = [block(10**6, 5, 10), block(50, 5, 10) | {"device": "cuda:0"}]
    found = memory_figures(write_run(tmp_path, blocks, steps=1, info={"device": given}))
    assert (found["device"], found["peak_bytes"]) == ("cuda:0", 50)
    assert found["other_devices"] == [{"device": "cpu", "peak_bytes": 10**6}]

"""Advice on memory: every rule replays the hand-made step, so its saving is known on paper."""

from __future__ import annotations

import polars as pl
import pytest

from detscope.analyze.advice import advise_on_memory
from detscope.analyze.memory.account import memory_account
from detscope.analyze.memory.blocks import ledger_of, windows_of
from detscope.analyze.memory.checkpoint import candidates, checkpointed, plain_parts
from detscope.analyze.memory.replay import peak_of, replay_of
from memory_samples import a_step, block, made_run, state, write_run

PEAK = 11_500


def advice_of(run) -> dict:
    return {row.rule: row for row in advise_on_memory(run, memory_account(run))}


@pytest.fixture
def run(tmp_path):
    return made_run(tmp_path)


def replay(run, step: int = 0):
    ledger = ledger_of(run.table("memory"))
    return replay_of(ledger, windows_of(ledger, run.table("steps"))[step])


def test_a_replay_that_changes_nothing_has_the_measured_peak(run):
    assert peak_of(replay(run)) == PEAK


def test_half_the_batch_saves_half_of_what_images_brought(run):
    found = advice_of(run)["batch"]
    assert found.saves_bytes == 9500 / 2
    assert found.how == "--batch-size 1"
    assert "twice" in found.costs or "2 times" in found.costs


def test_every_piece_of_advice_has_a_saving_a_cost_and_a_way(run):
    for row in advice_of(run).values():
        assert row.peak_bytes == PEAK - row.saves_bytes
        assert row.costs and row.how and row.title


def test_optimizer_state_goes_without_momentum_and_halves_from_adamw_to_sgd(tmp_path, run):
    assert advice_of(run)["optimizer"].saves_bytes == 700
    info = {"settings": {"training": {"optimizer": "adamw", "precision": "fp32"}}}
    assert advice_of(made_run(tmp_path / "adamw", info=info))["optimizer"].saves_bytes == 350


def test_gradients_of_the_step_before_cost_where_the_peak_is_in_forward(tmp_path):
    forward = block(9000, 440, 490, module="head", stage="head", step=0)
    found = advice_of(write_run(tmp_path, [*state(), *a_step(0), forward], steps=1))
    assert found["zero_grad"].saves_bytes == 700
    assert "set_to_none" in found["zero_grad"].how


def test_gradients_that_are_never_freed_are_told_to_be_set_to_none(tmp_path):
    rows = [row | ({"free_ns": None} if row["category"] == "gradients" else {}) for row in state()]
    step = [row for row in a_step(0) if row["category"] != "gradients"]
    forward = block(9000, 440, 490, module="head", stage="head", step=0)
    found = advice_of(write_run(tmp_path, [*rows, *step, forward], steps=1))["zero_grad"]
    assert found.saves_bytes == 700
    assert found.title.startswith("zero_grad(set_to_none=True)")


def test_a_frozen_first_stage_keeps_neither_activations_nor_gradients_nor_state(run):
    found = advice_of(run)["frozen"]
    assert found.stage == "body"
    # what is left at the highest moment, in forward: parameters 700, head's state and old gradient 800,
    # inputs 1000, the stage's result 2000, head's activation 500 and temporary 300, and of the stage
    # nothing else; while the stage runs two of its blocks are alive at once
    assert found.peak_bytes == 700 + 800 + 1000 + 4000


def test_parts_with_two_weighted_plain_layers_can_be_computed_again(run):
    nodes = run.table("nodes")
    assert plain_parts(nodes) == ["body.0"]
    [found] = candidates(replay(run), nodes, run.table("spans"))
    assert (found.path, found.held_bytes, found.forward_ms) == ("body.0", 4000, 4.0)


def test_a_checkpointed_part_is_gone_while_others_run_and_back_in_its_own_backward(run):
    again = checkpointed(replay(run), ("body.0",))
    # in its own backward everything is there as before; the head's backward no longer carries it
    own = [
        (begin, end, size)
        for begin, end, size, original in zip(
            again.begin_ns, again.end_ns, again.size, again.original, strict=True
        )
        if not original
    ]
    assert sorted(size for _, _, size in own) == [2000, 2000, 2000]
    assert min(begin for begin, _, _ in own) == 650_000
    assert peak_of(again) == PEAK  # this network has one part only: the peak is in its own backward


def test_checkpointing_lowers_a_peak_outside_of_the_part(tmp_path):
    late = block(9000, 590, 630, module="head", direction="backward", step=0)
    run = write_run(tmp_path, [*state(), *a_step(0), late], steps=1)
    before = memory_account(run)
    found = advice_of(run)["checkpoint"]
    assert found.paths == ("body.0",)
    assert found.recomputed_ms == 4.0
    assert found.saves_bytes == 4000, "two of three blocks; the result is needed by the head"
    assert found.peak_bytes == before.peak_bytes - 4000


def test_bf16_halves_what_dense_layers_made_and_adds_half_copies_of_their_weights(run):
    found = advice_of(run)["bf16"]
    # the peak moves into forward: state and old gradients 2100, the batch and its half copy 1500, activations
    # and the temporary of dense layers halved, half copies of all three weights
    assert found.peak_bytes == 2100 + 1500 + (6500 + 300) / 2 + 700 / 2


def test_after_frozen_batch_norm_layers_keep_half_copies_beside_single_precision(tmp_path):
    made = made_run(tmp_path)
    nodes = made.table("nodes")
    frozen = pl.when(pl.col("path") == "body.0.relu").then(pl.lit("FrozenBatchNorm2d")).otherwise("type")
    nodes.with_columns(frozen.alias("type")).write_parquet(made.folder / "nodes.parquet")
    with_frozen = advice_of(made)["bf16"].peak_bytes
    # its 2000 bytes stay, and conv2, which reads them, keeps 1000 of its own
    assert with_frozen == advice_of(made_run(tmp_path / "plain"))["bf16"].peak_bytes + 1000 + 1000


def test_a_run_in_bf16_is_not_told_to_use_it(tmp_path):
    info = {"settings": {"training": {"precision": "bf16"}}, "precision": "bf16"}
    assert "bf16" not in advice_of(made_run(tmp_path, info=info))


def test_fewer_channels_shrink_activations_by_their_share_and_weights_by_its_square(run):
    found = advice_of(run)["channels"]
    assert found.stage == "body"
    # parameters and momentum of two convolutions, one gradient; each block is rounded by itself
    assert found.saves_bytes == pytest.approx(0.25 * 6000 + (1 - 0.75**2) * 800, abs=5)

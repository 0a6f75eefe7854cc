"""A network whose memory is computed on paper: every category to the byte.

All numbers are float32 (4 bytes), the batch has 8 rows.

    layer                          output           kept for backward
    frozen  Linear 16 -> 16        8x16 =  512      its output, for fc's weight gradient:        512
    fc      Linear 16 -> 32        8x32 = 1024      (its input, counted above)
    relu    in place               the same block   its output:                                 1024
    norm    BatchNorm 32           8x32 = 1024      mean and inverse deviation: 2 x 32 x 4 =     256
    view    8x4x8                  the same block   nothing; dropout does not keep its input
    drop    dropout                8x32 = 1024      the noise it multiplies with:               1024
    block   checkpointed           8x32 = 1024      only its input, which drop made:            1024
    chunk   two views of one block                  the product keeps both, one block:          1024
    product                        8x16 =  512      nothing: a sum keeps no values
    loss    sum                              4      the loss itself, held by the loop:             4
    and the gradient of the loss, made before the backward pass begins:                             4
                                                                            activations         4872

    parameters  frozen 16x16+16 = 272; fc 16x32+32 = 544; norm 32+32 = 64; block 2 x (32x32+32) = 2112
                272 + 544 + 64 + 2112 = 2992, times 4 =                                         11968
    buffers     norm: mean and variance 2 x 32 x 4, a counter of 8:                               264
    gradients   all but frozen: 2720 x 4 =                                                      10880
    SGD         one momentum per trained parameter:                                             10880
    Adam        two moments, 2 x 10880, and a step counter of 4 for each of 8 parameters:       21792
    inputs      8x16:                                                                             512

In the backward pass the checkpointed block (Linear, ReLU, Linear) runs again until everything it must keep
is there: the first Linear's output (1024, let go at once), and the ReLU's output (1024, kept: it is the
second Linear's input).
"""

from __future__ import annotations

import gc
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import detscope
from detscope.runs.reader import load_run

ACTIVATIONS, PARAMETERS, GRADIENTS, INPUTS = 4872, 11968 + 264, 10880, 512
MOMENTUM, ADAM = 10880, 2 * 10880 + 8 * 4


class OnPaper(nn.Module):
    """See above."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.fc = nn.Linear(16, 32)
        self.relu = nn.ReLU(inplace=True)
        self.norm = nn.BatchNorm1d(32)
        self.drop = nn.Dropout(0.5)
        self.block = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.relu(self.fc(self.frozen(x))))
        x = self.drop(x.view(8, 4, 8)).view(8, 32)
        x = checkpoint(self.block, x, use_reentrant=False, preserve_rng_state=False)
        first, second = x.chunk(2, dim=1)
        return (first * second).sum()


def record(folder: Path, kind: str, every: int = 1, **options) -> tuple[pl.DataFrame, dict]:
    """Blocks of three steps; gradients are applied and cleared after every so many of them."""
    gc.collect()  # what earlier tests recorded and left would be released during this recording
    torch.manual_seed(0)
    model = OnPaper()
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        if kind == "sgd"
        else torch.optim.Adam(model.parameters(), lr=0.01)
    )
    options = {"warmup_steps": 0, "memory_steps": 3, **options}
    recorder = detscope.Recorder(
        model, optimizer, folder, stages=(), observers=(), memory=True, telemetry_hz=0, **options
    )
    with recorder:
        for number, x in enumerate(recorder.steps(torch.rand(8, 16) for _ in range(3))):
            loss = model(x)
            if number % every == 0:
                optimizer.zero_grad()
            loss.backward()
            if number % every == every - 1:
                optimizer.step()
    run = load_run(recorder.run)
    return run.table("memory"), run.info["memory"]


def alive(blocks: pl.DataFrame, time_ns: int) -> dict[str, int]:
    """Bytes by category right before a moment."""
    begun = pl.col("alloc_ns").fill_null(0) < time_ns
    there = blocks.filter(begun & (pl.col("free_ns").is_null() | (pl.col("free_ns") >= time_ns)))
    return dict(there.group_by("category").agg(pl.col("bytes").sum()).iter_rows())


def before_backward(blocks: pl.DataFrame, step: int) -> dict[str, int]:
    """What is alive when the backward pass begins."""
    made = blocks.filter((pl.col("step") == step) & (pl.col("phase") == "backward"))
    return alive(blocks, made["alloc_ns"].min())


def test_every_category_at_the_turn_from_forward_to_backward(tmp_path):
    blocks, _ = record(tmp_path, "sgd")
    expected = {"parameters": PARAMETERS, "inputs": INPUTS, "activations": ACTIVATIONS}
    assert before_backward(blocks, 0) == expected
    for step in (1, 2):  # momentum is there from the first optimizer step on
        assert before_backward(blocks, step) == {**expected, "optimizer": MOMENTUM}


def test_what_a_step_leaves_behind(tmp_path):
    blocks, info = record(tmp_path, "sgd")
    end = alive(blocks, 1 << 62)
    assert {key: end[key] for key in ("parameters", "gradients", "optimizer", "inputs")} == {
        "parameters": PARAMETERS,
        "gradients": GRADIENTS,
        "optimizer": MOMENTUM,
        "inputs": INPUTS,
    }
    assert info["live_bytes"] == {"parameters": PARAMETERS, "gradients": GRADIENTS, "optimizer": MOMENTUM}
    assert (info["unknown_frees"], info["unseen_frees"]) == (0, 0)
    assert blocks.filter(pl.col("category") == "unknown").is_empty()


def test_adam_keeps_two_moments_and_a_counter(tmp_path):
    blocks, info = record(tmp_path, "adam")
    assert before_backward(blocks, 2)["optimizer"] == ADAM == info["live_bytes"]["optimizer"]
    names = blocks.filter(pl.col("category") == "optimizer")["name"].to_list()
    assert {"fc.weight exp_avg", "fc.weight exp_avg_sq", "fc.weight step"} <= set(names)


def test_accumulated_gradients_stay_and_the_new_ones_are_temporary(tmp_path):
    blocks, _ = record(tmp_path, "sgd", every=2)
    assert before_backward(blocks, 0).get("gradients", 0) == 0
    assert before_backward(blocks, 1)["gradients"] == GRADIENTS
    second = blocks.filter((pl.col("step") == 1) & (pl.col("phase") == "backward"))
    assert second.filter(pl.col("category") == "gradients").is_empty()
    assert set(second["category"].to_list()) <= {"temporary", "activations", "workspace"}


def test_a_checkpointed_block_is_recomputed_and_kept_once_more(tmp_path):
    blocks, _ = record(tmp_path, "sgd")
    again = blocks.filter((pl.col("step") == 1) & (pl.col("direction") == "recompute"))
    sizes = dict(again.group_by("category").agg(pl.col("bytes").sum()).iter_rows())
    assert sizes == {"temporary": 1024, "activations": 1024}
    assert dict(again.select("category", "module").iter_rows()) == {
        "temporary": "block.0",
        "activations": "block.1",
    }


def test_blocks_know_their_module_operator_and_shape(tmp_path):
    blocks, _ = record(tmp_path, "sgd")
    kept = blocks.filter((pl.col("step") == 1) & (pl.col("category") == "activations"))
    found = {(row["module"], row["operator"], row["shape"]) for row in kept.to_dicts()}
    assert {
        ("frozen", "aten::linear", "8x16"),
        ("fc", "aten::linear", "8x32"),
        ("norm", "aten::batch_norm", None),
        ("block.2", "aten::linear", "8x32"),
    } <= found
    gradients = blocks.filter((pl.col("step") == 1) & (pl.col("category") == "gradients"))
    assert dict(gradients.select("name", "module").iter_rows())["fc.weight"] == "fc"
    assert "frozen.weight" not in gradients["name"].to_list()


def test_what_was_there_before_the_first_measured_step_is_said_to_be(tmp_path):
    blocks, info = record(tmp_path, "sgd", warmup_steps=2, memory_steps=1)
    assert info["steps"] == [2]
    assert set(blocks["step"].drop_nulls().to_list()) == {2}
    before = blocks.filter(pl.col("alloc_ns").is_null())
    sizes = dict(before.group_by("category").agg(pl.col("bytes").sum()).iter_rows())
    assert sizes["parameters"] == PARAMETERS
    assert sizes["gradients"] == GRADIENTS
    assert sizes["optimizer"] == MOMENTUM


@pytest.mark.parametrize("warmup_steps", [0, 1])
def test_gradients_from_before_recording_go_when_they_are_cleared(tmp_path, warmup_steps):
    torch.manual_seed(0)
    model = OnPaper()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.rand(8, 16)).backward()
    recorder = detscope.Recorder(
        model, optimizer, tmp_path, stages=(), observers=(), memory=True, warmup_steps=warmup_steps,
        memory_steps=2, telemetry_hz=0,
    )  # fmt: skip
    with recorder:
        for x in recorder.steps(torch.rand(8, 16) for _ in range(warmup_steps + 2)):
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
    blocks = load_run(recorder.run).table("memory")
    for step in range(warmup_steps, warmup_steps + 2):
        assert before_backward(blocks, step).get("gradients", 0) == 0

"""Checkpoints: whole or not there, without pickle, and everything comes back."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from detscope.errors import InputError
from detscope.loops.ema import WeightAverage
from detscope.loops.train import Position, TrainPlan, make_scaler
from detscope.sessions.train.checkpoints import (
    TrainingParts,
    latest_checkpoint,
    restore_parts,
    save_best,
    save_checkpoint,
    share_checkpoints,
    update_state,
    weights_of_run,
)

STATE = {"evaluated": True, "best": None}


def parts(optimizer: str = "adamw", precision: str = "fp32") -> TrainingParts:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    kinds = {
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.1),
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    }
    scaler = make_scaler(TrainPlan(precision=precision))
    return TrainingParts(model, kinds[optimizer](), scaler, WeightAverage(model, 0.9))


def step(made: TrainingParts) -> float:
    """One step on random data, so that it depends on every state there is."""
    data = torch.randn(6, 4) + random.random() + float(np.random.normal())
    loss = made.model(data).pow(2).mean()
    made.optimizer.zero_grad()
    loss.backward()
    made.optimizer.step()
    made.average.add_step()
    return loss.item()


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_restored_training_goes_on_exactly_as_the_one_it_came_from(optimizer, tmp_path):
    first = parts(optimizer)
    for _ in range(3):
        step(first)
    save_checkpoint(tmp_path, first, Position(3, 1, 0), STATE)
    wanted = [step(first) for _ in range(3)]
    second = parts(optimizer)
    found = latest_checkpoint(tmp_path)
    assert found.position == Position(3, 1, 0)
    restore_parts(found, second)
    assert [step(second) for _ in range(3)] == wanted
    pairs = zip(first.average.list_tensors().values(), second.average.list_tensors().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_the_scale_of_fp16_is_kept(tmp_path):
    made = parts(precision="fp16")
    made.scaler.scale(torch.ones(1))
    made.scaler.update(1234.0)
    save_checkpoint(tmp_path, made, Position(1, 1), STATE)
    again = parts(precision="fp16")
    restore_parts(latest_checkpoint(tmp_path), again)
    assert again.scaler.state_dict()["scale"] == 1234.0


def test_only_tensors_and_json_are_written(tmp_path):
    folder = save_checkpoint(tmp_path, parts(), Position(3, 1), STATE)
    assert sorted(path.name for path in folder.iterdir()) == [
        "model.safetensors",
        "state.json",
        "training.safetensors",
    ]
    json.loads((folder / "state.json").read_text())
    assert load_file(folder / "model.safetensors")["0.weight"].shape == (4, 4)


def test_the_newest_is_kept_and_one_that_was_being_written_does_not_count(tmp_path):
    made = parts()
    for epoch in (1, 2):
        save_checkpoint(tmp_path, made, Position(10 * epoch, epoch), STATE)
    (tmp_path / "checkpoints" / "step-00000030-0003").mkdir()  # no state.json: died while writing
    assert latest_checkpoint(tmp_path).position.epochs == 2
    whole = [path for path in (tmp_path / "checkpoints").glob("step-*") if list(path.iterdir())]
    assert [path.name for path in whole] == ["step-00000020-0002"]


def test_the_best_weights_come_before_the_last(tmp_path):
    made = parts()
    last = save_checkpoint(tmp_path, made, Position(3, 1), STATE)
    assert weights_of_run(tmp_path) == last / "model.safetensors"
    best = save_best(tmp_path, made.model, {"value": 0.5})
    assert weights_of_run(tmp_path) == best
    with pytest.raises(InputError, match="no checkpoint"):
        weights_of_run(tmp_path / "other")


def test_a_resumed_run_shares_the_files_and_changes_none_of_the_old_ones(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    for run in (old, new):
        run.mkdir()
    save_checkpoint(old, parts(), Position(3, 1), {"evaluated": False, "best": None})
    share_checkpoints(old, new)
    update_state(latest_checkpoint(new).folder, evaluated=True)
    assert latest_checkpoint(new).state["evaluated"]
    assert not latest_checkpoint(old).state["evaluated"]


def test_a_checkpoint_of_another_model_is_refused_and_named(tmp_path):
    save_checkpoint(tmp_path, parts(), Position(3, 1), STATE)
    other = nn.Linear(2, 2)
    wrong = TrainingParts(other, torch.optim.SGD(other.parameters(), lr=1.0), make_scaler(TrainPlan()))
    with pytest.raises(InputError, match=r"step-00000003-0001 does not fit"):
        restore_parts(latest_checkpoint(tmp_path), wrong)


def test_a_damaged_file_is_named(tmp_path):
    folder: Path = save_checkpoint(tmp_path, parts(), Position(3, 1), STATE)
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read"):
        restore_parts(latest_checkpoint(tmp_path), parts())

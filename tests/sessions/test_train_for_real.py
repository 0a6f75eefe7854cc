"""Training for real: recipe, evaluation, curve, resuming with more epochs, and what ends it early."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from detscope.analyze.summary import summarize
from detscope.config.load import load_settings
from detscope.config.schema import Settings
from detscope.errors import InputError, MachineError, UsageError
from detscope.report.progress import QuietProgress
from detscope.runs.reader import load_run
from detscope.sessions.train.checkpoints import latest_checkpoint, weights_of_run
from detscope.sessions.train.training import apply_recipe, keeps_checkpoints, run_training
from detscope.zoo.registry import get_card

OUT_OF_MEMORY = """
import torch
from torch import nn


class Greedy(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.calls = 0

    def forward(self, images, targets=None):
        if not self.training:
            nothing = torch.zeros(0)
            return [{"boxes": torch.zeros(0, 4), "labels": nothing.long(), "scores": nothing} for _ in images]
        self.calls += 1
        if self.calls > 6:
            torch.empty(2**60, dtype=torch.uint8)
        return {"loss_weight": (self.weight - 1).pow(2).sum()}


def greedy():
    return Greedy()
"""


@pytest.fixture(scope="session")
def data_root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


def settings_for(model: str, tmp_path: Path, data_root: Path, **sections: dict) -> Settings:
    plain = {
        "training": {"num_epochs": 2, "num_workers": 0, "device": "cpu", "batch_size": 2, "warmup_steps": 1},
        "model": {"name": model, "weights": "none"},
        "data": {"root": str(data_root), "images": 4, "image_width": 160, "image_height": 128},
        "evaluation": {"every": 1, "images": 3},
        "record": {"telemetry_hz": 0.0},
        "output": {"runs": str(tmp_path / "runs")},
    }
    for section, values in sections.items():
        plain[section] = {**plain[section], **values}
    return Settings.model_validate(plain)


def train(settings: Settings) -> Path:
    return run_training(settings, progress=QuietProgress())


@pytest.fixture(scope="module")
def masks(tmp_path_factory, data_root) -> Path:
    """A short training with everything on."""
    more = {"ema_decay": 0.9, "clip_gradients": 5.0, "tensorboard": True}
    settings = settings_for("tiny_maskrcnn", tmp_path_factory.mktemp("masks"), data_root)
    return train(settings.model_copy(update={"training": settings.training.model_copy(update=more)}))


def test_losses_learning_rate_and_accuracy_are_in_the_tables(masks):
    run = load_run(masks)
    losses = run.table("losses")
    assert losses["step"].unique().sort().to_list() == [0, 1, 2, 3]
    assert {"loss", "loss_mask", "loss_objectness", "learning_rate"} <= set(losses["name"])
    accuracy = run.table("accuracy")
    assert accuracy["epoch"].unique().sort().to_list() == [1, 2]
    assert accuracy["step"].unique().sort().to_list() == [2, 4]
    assert set(accuracy["kind"]) == {"coco_box", "coco_mask", "voc07", "voc10"}
    coco = accuracy.filter(pl.col("kind").str.starts_with("coco") & (pl.col("step") == 4))
    overall = coco.filter(pl.col("category").is_null())
    assert overall.height == 24, "twelve figures for boxes and twelve for masks"
    assert set(accuracy["category"].drop_nulls()) == {"circle", "square", "triangle", "star", "cross"}


def test_the_summary_tells_accuracy_and_every_epoch(masks):
    summary = summarize(masks)
    accuracy = summary.accuracy
    assert accuracy.coco_mask is not None and accuracy.best is not None and accuracy.classes
    assert accuracy.ap is not None and accuracy.ap50 == accuracy.coco_box.ap50
    assert [row.epoch for row in summary.epochs] == [1, 2]
    assert "learning_rate" not in {part.name for part in summary.loss.parts}
    assert summary.loss.first is not None
    assert summary.level == "phases"
    assert {row.key: row.value for row in summary.recipe}["training.optimizer"] == "sgd"


def test_picture_tensorboard_and_best_weights_are_there(masks):
    from PIL import Image

    with Image.open(masks / "pictures" / "curve.png") as picture:
        assert picture.size == (1600, 600)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(masks / "tb")).Reload()
    tags = set(events.Tags()["scalars"])
    assert {"training/learning_rate", "losses/loss_mask", "accuracy/coco_mask_AP50"} <= tags
    assert [point.step for point in events.Scalars("accuracy/coco_box_AP")] == [2, 4]
    assert weights_of_run(masks).name == "best.safetensors"


def test_the_recipe_fills_only_what_the_user_left_open(tmp_path):
    card = get_card("tiny_efficientdet")
    chosen = load_settings(None, ["training.learning_rate=0.5"], {"evaluation.every": 1}).settings
    completed, changed = apply_recipe(chosen, card)
    assert completed.training.learning_rate == 0.5
    assert completed.training.optimizer == "adamw"
    assert (completed.data.images, completed.evaluation.images) == (256, 64)
    assert "training.learning_rate" not in changed
    assert completed.record.level == "phases"


def test_without_evaluation_a_run_is_a_measurement_and_no_recipe_touches_it():
    plain = load_settings(None, [], {}).settings
    assert apply_recipe(plain, get_card("tiny_ssd")) == (plain, {})
    assert not keeps_checkpoints(plain)
    assert keeps_checkpoints(load_settings(None, [], {"training.num_epochs": 2}).settings)
    assert not keeps_checkpoints(load_settings(None, [], {"training.steps": 9}).settings)


def test_resumed_for_more_epochs_it_is_the_training_that_had_them_from_the_start(tmp_path, data_root):
    constant = {"schedule": "constant", "lr_warmup_steps": 0}
    whole = train(settings_for("tiny_ssd", tmp_path, data_root, training={**constant, "num_epochs": 3}))
    first = train(settings_for("tiny_ssd", tmp_path, data_root, training={**constant, "num_epochs": 1}))
    flags = {"training.num_epochs": 3, "training.resume": str(first)}
    second = train(load_settings(first / "config.toml", (), flags).settings)
    runs = [load_run(run) for run in (whole, second)]
    for name in ("losses", "accuracy"):
        keys = runs[0].table(name).columns[:-1]
        one, other = (run.table(name).sort(keys) for run in runs)
        assert one.equals(other), name
    assert runs[1].info["resumed_from"]["run"] == first.name
    assert runs[1].table("steps")["step"].unique().sort().to_list() == [2, 3, 4, 5]
    assert runs[1].table("steps")["epoch"].unique().sort().to_list() == [1, 2]


def test_other_settings_than_before_are_refused_by_name(tmp_path, data_root):
    first = train(settings_for("tiny_ssd", tmp_path, data_root, training={"num_epochs": 1}))
    flags = {"training.resume": str(first), "training.batch_size": 4, "data.images": 8}
    with pytest.raises(UsageError, match=r"training\.batch_size: 2 -> 4; data\.images: 4 -> 8"):
        train(load_settings(first / "config.toml", (), flags).settings)


def test_a_run_without_checkpoint_cannot_be_resumed(tmp_path, data_root):
    training = {"num_epochs": 1, "checkpoints": False}
    first = train(settings_for("tiny_ssd", tmp_path, data_root, training=training))
    with pytest.raises(InputError, match="no checkpoint to resume from"):
        train(load_settings(first / "config.toml", (), {"training.resume": str(first)}).settings)


def only_run(tmp_path: Path) -> Path:
    (run,) = [path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()]
    return run


def test_after_a_loss_that_is_not_finite_the_last_epoch_is_kept_and_the_way_on_is_told(tmp_path, data_root):
    training = {"learning_rate": 1e4, "num_epochs": 40, "clip_gradients": 1e30, "lr_warmup_steps": 30}
    settings = settings_for("tiny_ssd", tmp_path, data_root, training={**training, "optimizer": "sgd"})
    with pytest.raises(InputError, match="not finite") as caught:
        train(settings)
    run = only_run(tmp_path)
    assert f"detscope train --resume {run}" in caught.value.hint
    assert "learning_rate" in caught.value.hint
    kept = latest_checkpoint(run)
    assert kept.position.batches == 0
    assert summarize(run).status == "failed"


def test_out_of_memory_keeps_the_checkpoint_and_says_how_to_go_on(tmp_path, data_root):
    source = tmp_path / "greedy.py"
    source.write_text(OUT_OF_MEMORY)
    settings = settings_for(f"{source}:greedy", tmp_path, data_root, training={"num_epochs": 9})
    with pytest.raises(MachineError, match=r"out of memory on cpu at step 6") as caught:
        train(settings)
    run = only_run(tmp_path)
    assert f"detscope train --resume {run}" in caught.value.hint
    assert latest_checkpoint(run).position.epochs == 3
    summary = summarize(run)
    assert summary.status == "oom_host"
    assert summary.accuracy.ap50 == 0.0

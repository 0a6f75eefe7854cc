"""The loop itself, on a model small enough to check by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detscope.errors import InputError
from detscope.loops.ema import WeightAverage
from detscope.loops.train import LearningRate, Position, TrainHooks, TrainPlan, train_model


class Distance(nn.Module):
    """Loss: the squared distance of a weight from the mean of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, images, targets):
        wanted = torch.stack([image.mean() for image in images]).mean()
        return {"distance": (self.weight - wanted) ** 2, "size": 0.1 * self.weight**2}


def batches(count: int, value: float = 1.0) -> list:
    return [([torch.full((3, 2, 2), value)], [{"image_id": number}]) for number in range(count)]


def trained(plan: TrainPlan, loader=None, schedule=None, rate: float = 0.1, **more):
    model = Distance()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    seen: list[tuple[int, dict]] = []
    hooks = TrainHooks(on_losses=lambda step, losses: seen.append((step, losses)))
    for name in ("after_epoch", "should_stop", "on_epoch"):
        if name in more:
            setattr(hooks, name, more.pop(name))
    done = train_model(model, loader or batches(4), optimizer, plan, schedule, hooks, **more)
    return model, done, seen


def test_losses_come_with_their_parts_and_the_learning_rate_of_their_step():
    _, done, seen = trained(
        TrainPlan(epochs=2), schedule=LearningRate("step", steps_per_epoch=4, step_epochs=1)
    )
    assert (done.steps, done.epochs, done.batches) == (8, 2, 0)
    step, losses = seen[0]
    assert step == 0
    assert list(losses) == ["loss", "distance", "size", "learning_rate"]
    assert losses["loss"] == pytest.approx(losses["distance"] + losses["size"])
    assert [round(losses["learning_rate"], 6) for _, losses in seen] == [0.1] * 4 + [0.01] * 4


def test_gradients_are_clipped_to_the_norm_that_is_asked_for():
    free, _, _ = trained(TrainPlan(max_steps=1), batches(1, 100.0))
    clipped, _, _ = trained(TrainPlan(max_steps=1, clip_norm=1.0), batches(1, 100.0))
    assert free.weight.item() == pytest.approx(20.0)
    assert clipped.weight.item() == pytest.approx(0.1)


def test_clipping_in_fp16_sees_gradients_without_their_scale():
    model, _, _ = trained(TrainPlan(max_steps=1, clip_norm=1.0, precision="fp16"), batches(1, 10.0))
    assert model.weight.item() == pytest.approx(0.1, rel=1e-3)


def test_the_end_of_a_pass_is_told_once_its_losses_are_known():
    told: list[tuple[int, int]] = []
    seen: list = []
    _, _, seen = trained(TrainPlan(epochs=2), after_epoch=lambda at: told.append((at.epochs, at.steps)))
    assert told == [(1, 4), (2, 8)]
    assert len(seen) == 8


def test_asked_to_stop_it_ends_after_the_step_and_says_where():
    steps = iter([False, False, True])
    ended: list = []
    _, done, _ = trained(
        TrainPlan(epochs=3), should_stop=lambda: next(steps), after_epoch=lambda at: ended.append(at)
    )
    assert done.stopped
    assert done.position == Position(steps=3, epochs=0, batches=3)
    assert not ended, "the pass was not finished"


def test_a_training_that_starts_later_numbers_its_steps_on():
    _, done, seen = trained(TrainPlan(epochs=3, start=Position(steps=8, epochs=2)))
    assert [step for step, _ in seen] == [8, 9, 10, 11]
    assert done.epochs == 3


def test_the_average_is_updated_once_per_step():
    model = Distance()
    average = WeightAverage(model, 0.5)
    train_model(model, batches(3), torch.optim.SGD(model.parameters(), lr=0.1), TrainPlan(), average=average)
    assert average.updates == 3
    assert 0 < float(average.list_tensors()["0"]) < model.weight.item()


def test_a_loss_that_is_not_finite_names_step_and_images():
    bad = [*batches(2), ([torch.full((3, 2, 2), float("nan"))], [{"image_id": 77}])]
    with pytest.raises(InputError, match=r"step 2 \(images 77\)"):
        trained(TrainPlan(), bad)

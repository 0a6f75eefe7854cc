"""The training loop: data wait -> to device -> forward -> backward -> optimizer. Readable in one sitting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from detscope.loops.ema import WeightAverage
from detscope.loops.losses import LossWatch
from detscope.loops.schedules import Schedule, set_rates
from detscope.marks import phase
from detscope.zoo.outputs import check_losses

Batch = tuple[list[torch.Tensor], list[dict[str, Any]]]
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Position:
    """How far a training is."""

    steps: int = 0
    epochs: int = 0  # passes that ended
    batches: int = 0  # of the pass that is under way


@dataclass(frozen=True)
class TrainPlan:
    """How long and in which arithmetic."""

    device: str = "cpu"
    epochs: int = 1
    max_steps: int | None = None  # ends the training, in the middle of a pass if need be
    repeat_until_max: bool = False  # go on passing over the data until max_steps
    precision: str = "fp32"
    channels_last: bool = False
    clip_norm: float | None = None  # largest norm of all gradients together
    start: Position = Position()  # where a resumed training goes on


@dataclass
class TrainHooks:
    """Where others may listen; by default nobody does."""

    each_batch: Callable[[Iterable[Batch]], Iterator[Batch]] = iter
    on_losses: Callable[[int, dict[str, float]], None] = lambda _step, _losses: None
    on_epoch: Callable[[int], None] = lambda _epoch: None
    after_epoch: Callable[[Position], None] = lambda _position: None  # the pass has ended, losses are known
    should_stop: Callable[[], bool] = lambda: False  # asked after every step


@dataclass
class Trained:
    """How far the training got, and whether somebody asked it to stop."""

    steps: int = 0
    epochs: int = 0
    batches: int = 0
    stopped: bool = False

    @property
    def position(self) -> Position:
        """Where a later training would go on."""
        return Position(self.steps, self.epochs, self.batches)


def make_scaler(plan: TrainPlan) -> torch.amp.GradScaler:
    """Scales the loss where gradients would vanish in fp16; elsewhere it does nothing."""
    return torch.amp.GradScaler(plan.device.split(":")[0], enabled=plan.precision == "fp16")


def train(
    model: nn.Module,
    loader: Iterable[Batch],
    optimizer: torch.optim.Optimizer,
    plan: TrainPlan,
    schedule: Schedule | None = None,
    hooks: TrainHooks | None = None,
    *,
    scaler: torch.amp.GradScaler | None = None,
    average: WeightAverage | None = None,
) -> Trained:
    """Train; a loss that is not finite ends it, naming step and images."""
    hooks, schedule = hooks or TrainHooks(), schedule or Schedule()
    scaler = scaler or make_scaler(plan)
    done = Trained(plan.start.steps, plan.start.epochs, plan.start.batches)
    watch = LossWatch(hooks.on_losses, late=plan.device.startswith("cuda"))
    model.train()
    while not (done.stopped or _finished(done, plan)):
        hooks.on_epoch(done.epochs)
        for batch in hooks.each_batch(loader):
            rate = set_rates(optimizer, schedule.factor(done.steps))
            losses = _step(model, batch, optimizer, scaler, plan, average)
            watch.take(done.steps, losses, batch[1], rate)
            done.steps += 1
            done.batches += 1
            done.stopped = hooks.should_stop()
            if done.stopped or (plan.max_steps is not None and done.steps >= plan.max_steps):
                break
        watch.finish()
        if not done.stopped:
            done.epochs, done.batches = done.epochs + 1, 0
            hooks.after_epoch(done.position)
    return done


def _step(
    model: nn.Module,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    plan: TrainPlan,
    average: WeightAverage | None,
) -> dict[str, torch.Tensor]:
    losses = _losses(model, batch, plan)
    check_losses(losses, model)
    total = sum(losses.values(), torch.zeros((), device=plan.device))
    optimizer.zero_grad(set_to_none=True)
    if scaler.is_enabled():
        scaler.scale(total).backward()
        _clip(model, optimizer, scaler, plan)
        scaler.step(optimizer)
        scaler.update()
    else:
        total.backward()
        _clip(model, optimizer, scaler, plan)
        optimizer.step()
    if average is not None:
        with phase("optimizer"):
            average.update()
    return losses


def _losses(model: nn.Module, batch: Batch, plan: TrainPlan) -> dict[str, torch.Tensor]:
    with phase("transfer"):
        images, targets = to_device(batch, plan.device, plan.channels_last)
    half = plan.precision != "fp32"
    kind = AUTOCAST.get(plan.precision, torch.bfloat16)
    with torch.autocast(plan.device.split(":")[0], dtype=kind, enabled=half):
        losses: dict[str, torch.Tensor] = model(images, targets)
    return losses


def forward_and_backward(model: nn.Module, batch: Batch, plan: TrainPlan) -> None:
    """The arithmetic of a step, without its optimizer."""
    losses = _losses(model, batch, plan)
    check_losses(losses, model)
    sum(losses.values(), torch.zeros((), device=plan.device)).backward()


def _clip(
    model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, plan: TrainPlan
) -> None:
    if plan.clip_norm is None:
        return
    with phase("optimizer"):
        if scaler.is_enabled():
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip_norm)


def to_device(batch: Batch, device: str, channels_last: bool = False) -> Batch:
    """Move images and targets; copies from pinned memory do not make the host wait."""
    images, targets = batch
    if device != "cpu":
        images = [image.to(device, non_blocking=True) for image in images]
        targets = [
            {
                key: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
                for key, value in target.items()
            }
            for target in targets
        ]
    if channels_last:
        images = [image.unsqueeze(0).to(memory_format=torch.channels_last).squeeze(0) for image in images]
    return images, targets


def _finished(done: Trained, plan: TrainPlan) -> bool:
    if plan.max_steps is not None and done.steps >= plan.max_steps:
        return True
    if plan.repeat_until_max and plan.max_steps is not None:
        return False
    return done.epochs >= plan.epochs

"""The training loop: data wait -> to device -> forward -> backward -> optimizer. Readable in one sitting."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from detscope.loops.losses import LossWatch
from detscope.marks import phase

Batch = tuple[list[torch.Tensor], list[dict[str, Any]]]
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class TrainPlan:
    """How long and in which arithmetic."""

    device: str = "cpu"
    epochs: int = 1
    max_steps: int | None = None  # ends the training, in the middle of a pass if need be
    repeat_until_max: bool = False  # go on passing over the data until max_steps
    precision: str = "fp32"
    channels_last: bool = False
    lr_warmup_steps: int = 0


@dataclass
class TrainHooks:
    """Where others may listen; by default nobody does."""

    each_batch: Callable[[Iterable[Batch]], Iterator[Batch]] = iter
    on_losses: Callable[[int, dict[str, float]], None] = lambda _step, _losses: None
    on_epoch: Callable[[int], None] = lambda _epoch: None


@dataclass
class Trained:
    """How far the training got."""

    steps: int = 0
    epochs: int = 0
    notes: list[str] = field(default_factory=list)


def train(
    model: nn.Module,
    loader: Iterable[Batch],
    optimizer: torch.optim.Optimizer,
    plan: TrainPlan,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    hooks: TrainHooks | None = None,
) -> Trained:
    """Train; a loss that is not finite ends it, naming step and images."""
    hooks = hooks or TrainHooks()
    done = Trained()
    scaler = torch.amp.GradScaler(plan.device.split(":")[0], enabled=plan.precision == "fp16")
    watch = LossWatch(hooks.on_losses, late=plan.device.startswith("cuda"))
    base_rates = [group["lr"] for group in optimizer.param_groups]
    model.train()
    while not _finished(done, plan):
        hooks.on_epoch(done.epochs)
        for batch in hooks.each_batch(loader):
            _warm_up_rate(optimizer, base_rates, done.steps, plan.lr_warmup_steps)
            losses = _step(model, batch, optimizer, scaler, plan)
            watch.take(done.steps, losses, batch[1])
            done.steps += 1
            if plan.max_steps is not None and done.steps >= plan.max_steps:
                break
        done.epochs += 1
        if scheduler is not None and done.steps >= plan.lr_warmup_steps:
            _step_schedule(scheduler)
            base_rates = [group["lr"] for group in optimizer.param_groups]
    watch.finish()
    return done


def _step(
    model: nn.Module,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    plan: TrainPlan,
) -> dict[str, torch.Tensor]:
    with phase("transfer"):
        images, targets = to_device(batch, plan.device, plan.channels_last)
    if plan.precision == "fp32":
        losses: dict[str, torch.Tensor] = model(images, targets)
    else:
        with torch.autocast(plan.device.split(":")[0], dtype=AUTOCAST[plan.precision]):
            losses = model(images, targets)
    total = sum(losses.values(), torch.zeros((), device=plan.device))
    optimizer.zero_grad(set_to_none=True)
    if scaler.is_enabled():
        scaler.scale(total).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        total.backward()
        optimizer.step()
    return losses


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


def _step_schedule(scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
    with warnings.catch_warnings():
        # fp16 may skip every optimizer step of a short pass while its scale settles; that is no mistake
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        scheduler.step()


def _warm_up_rate(
    optimizer: torch.optim.Optimizer, base_rates: list[float], step: int, warmup_steps: int
) -> None:
    """Linear warm-up of the learning rate."""
    if step > warmup_steps or warmup_steps == 0:
        return
    factor = min(1.0, (step + 1) / (warmup_steps + 1))
    for group, rate in zip(optimizer.param_groups, base_rates, strict=True):
        group["lr"] = rate * factor


def _finished(done: Trained, plan: TrainPlan) -> bool:
    if plan.max_steps is not None and done.steps >= plan.max_steps:
        return True
    if plan.repeat_until_max and plan.max_steps is not None:
        return False
    return done.epochs >= plan.epochs

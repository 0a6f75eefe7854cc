"""The training loop: data wait -> to device -> forward -> backward -> optimizer. Readable in one sitting."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from detscope.errors import InputError
from detscope.loops.ema import WeightAverage
from detscope.machine.accelerator import Accelerator, find_accelerator
from detscope.marks import phase
from detscope.zoo.outputs import check_losses

Batch = tuple[list[torch.Tensor], list[dict[str, Any]]]
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
MOST_LATE = 4  # steps that losses may be read late
_PendingLosses = tuple[int, tuple[str, ...], torch.Tensor, list[Any], float]


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
class TrainState:
    """How far the training got, and whether somebody asked it to stop."""

    steps: int = 0
    epochs: int = 0
    batches: int = 0
    stopped: bool = False

    @property
    def position(self) -> Position:
        """Where a later training would go on."""
        return Position(self.steps, self.epochs, self.batches)

    def is_finished(self, plan: TrainPlan) -> bool:
        """Whether the plan asks for no further pass."""
        if plan.max_steps is not None and (self.steps >= plan.max_steps or plan.repeat_until_max):
            return self.steps >= plan.max_steps
        return self.epochs >= plan.epochs


@dataclass(frozen=True)
class LearningRate:
    """Linear warm-up, then a constant, a stepwise or a cosine course.

    The rate follows from the step's number alone: nothing to save, nothing to restore.
    """

    kind: str = "constant"  # "constant", "step", "cosine"
    warmup_steps: int = 0
    steps_per_epoch: int = 1
    total_steps: int = 1  # of the whole training; the cosine ends there
    step_epochs: int = 3
    gamma: float = 0.1

    def factor_at(self, step: int) -> float:
        """By how much the base learning rate is multiplied in a step, counted from 0."""
        warm = (step + 1) / (self.warmup_steps + 1) if step < self.warmup_steps else 1.0
        if self.kind == "step":
            return float(warm * self.gamma ** (step // max(1, self.steps_per_epoch) // self.step_epochs))
        if self.kind == "cosine":
            length = max(1, self.total_steps - self.warmup_steps)
            done = min(1.0, max(0.0, (step - self.warmup_steps) / length))
            return warm * 0.5 * (1 + math.cos(math.pi * done))
        return warm


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> float:
    """Give every group its base rate times `factor`; the first group's rate is the one to show."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
    return float(optimizer.param_groups[0]["lr"])


def make_scaler(plan: TrainPlan) -> torch.amp.GradScaler:
    """Scales the loss where gradients would vanish in fp16; elsewhere it does nothing."""
    return torch.amp.GradScaler(plan.device.split(":")[0], enabled=plan.precision == "fp16")


def train_model(
    model: nn.Module,
    loader: Iterable[Batch],
    optimizer: torch.optim.Optimizer,
    plan: TrainPlan,
    schedule: LearningRate | None = None,
    hooks: TrainHooks | None = None,
    *,
    scaler: torch.amp.GradScaler | None = None,
    average: WeightAverage | None = None,
) -> TrainState:
    """Train; a loss that is not finite ends it, naming step and images."""
    hooks, schedule = hooks or TrainHooks(), schedule or LearningRate()
    scaler = scaler or make_scaler(plan)
    done = TrainState(plan.start.steps, plan.start.epochs, plan.start.batches)
    watch = LossWatch(hooks.on_losses, find_accelerator(plan.device))
    model.train()
    while not (done.stopped or done.is_finished(plan)):
        hooks.on_epoch(done.epochs)
        for batch in hooks.each_batch(loader):
            rate = set_rates(optimizer, schedule.factor_at(done.steps))
            losses = _take_step(model, batch, optimizer, scaler, plan, average)
            watch.take_losses(done.steps, losses, batch[1], rate)
            done.steps += 1
            done.batches += 1
            done.stopped = hooks.should_stop()
            if done.stopped or (plan.max_steps is not None and done.steps >= plan.max_steps):
                break
        watch.read_pending()
        if not done.stopped:
            done.epochs, done.batches = done.epochs + 1, 0
            hooks.after_epoch(done.position)
    return done


def _take_step(
    model: nn.Module,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    plan: TrainPlan,
    average: WeightAverage | None,
) -> dict[str, torch.Tensor]:
    losses, total = _sum_losses(model, batch, plan)
    optimizer.zero_grad(set_to_none=True)
    scaled = scaler.is_enabled()
    (scaler.scale(total) if scaled else total).backward()
    if plan.clip_norm is not None:
        with phase("optimizer"):
            if scaled:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip_norm)
    if scaled:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    if average is not None:
        with phase("optimizer"):
            average.add_step()
    return losses


def _sum_losses(
    model: nn.Module, batch: Batch, plan: TrainPlan
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Every loss of a batch, and all of them together."""
    with phase("transfer"):
        images, targets = to_device(batch, plan.device, plan.channels_last)
    half = plan.precision != "fp32"
    kind = AUTOCAST.get(plan.precision, torch.bfloat16)
    with torch.autocast(plan.device.split(":")[0], dtype=kind, enabled=half):
        losses: dict[str, torch.Tensor] = model(images, targets)
    check_losses(losses, model)
    return losses, sum(losses.values(), torch.zeros((), device=plan.device))


def run_forward_backward(model: nn.Module, batch: Batch, plan: TrainPlan) -> None:
    """The arithmetic of a step, without its optimizer."""
    _sum_losses(model, batch, plan)[1].backward()


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


class LossWatch:
    """Hands on every step's losses and stops the training when one is not finite.

    On a device they are read some steps late, when they have been copied: reading them makes nobody wait.
    """

    def __init__(
        self, on_losses: Callable[[int, dict[str, float]], None], accelerator: Accelerator | None = None
    ) -> None:
        self._on_losses = on_losses
        self._accelerator = accelerator or Accelerator("cpu")
        self._pending: deque[tuple[_PendingLosses, Any]] = deque()  # and the mark behind the copy

    def take_losses(
        self, step: int, losses: dict[str, torch.Tensor], targets: list[dict[str, Any]], learning_rate: float
    ) -> None:
        """Take the losses of a step and the learning rate it was made with."""
        values = torch.stack([loss.detach().float().reshape(()) for loss in losses.values()])
        mark = None
        if self._accelerator.has_clock:
            values = values.to("cpu", non_blocking=True)
            mark = self._accelerator.make_mark()
            self._accelerator.put_mark(mark)
        ids = [target.get("image_id") for target in targets]
        self._pending.append(((step, tuple(losses), values, ids, learning_rate), mark))
        while self._pending and self._is_copied(self._pending[0][1]):
            self._hand_on(*self._pending.popleft()[0])

    def _is_copied(self, mark: Any) -> bool:
        if mark is None or self._accelerator.has_passed(mark):
            return True
        if len(self._pending) <= MOST_LATE:
            return False
        mark.synchronize()
        return True

    def read_pending(self) -> None:
        """Read what is still pending."""
        if self._pending:
            self._accelerator.wait()
        while self._pending:
            self._hand_on(*self._pending.popleft()[0])

    def _hand_on(
        self, step: int, names: tuple[str, ...], values: torch.Tensor, ids: list[Any], learning_rate: float
    ) -> None:
        parts = dict(zip(names, values.tolist(), strict=True))
        total = sum(parts.values())
        if not math.isfinite(total):
            bad = ", ".join(f"{name} = {value}" for name, value in parts.items() if not math.isfinite(value))
            images = ", ".join(str(int(i)) for i in ids if i is not None) or "unknown"
            raise InputError(
                f"the loss is not finite at step {step} (images {images}): {bad}",
                "lower the learning rate (--set training.learning_rate=...), use fp32, or check these images",
            )
        self._on_losses(step, {"loss": total, **parts, "learning_rate": learning_rate})

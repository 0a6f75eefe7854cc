"""The learning rate of every step, from the step's number alone: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then a constant, a stepwise or a cosine course."""

    kind: str = "constant"  # "constant", "step", "cosine"
    warmup_steps: int = 0
    steps_per_epoch: int = 1
    total_steps: int = 1  # of the whole training; the cosine ends there
    step_epochs: int = 3
    gamma: float = 0.1

    def factor(self, step: int) -> float:
        """By how much the base learning rate is multiplied in a step, counted from 0."""
        warm = (step + 1) / (self.warmup_steps + 1) if step < self.warmup_steps else 1.0
        return warm * self._course(step)

    def _course(self, step: int) -> float:
        if self.kind == "step":
            return float(self.gamma ** (step // max(1, self.steps_per_epoch) // self.step_epochs))
        if self.kind == "cosine":
            length = max(1, self.total_steps - self.warmup_steps)
            done = min(1.0, max(0.0, (step - self.warmup_steps) / length))
            return 0.5 * (1 + math.cos(math.pi * done))
        return 1.0


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> float:
    """Give every group its base rate times `factor`; the first group's rate is the one to show."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
    return float(optimizer.param_groups[0]["lr"])

"""Losses are read one step late on a device, so that reading them does not make the host wait."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from detscope.errors import InputError

_Pending = tuple[int, tuple[str, ...], torch.Tensor, list[Any], float]


class LossWatch:
    """Hands on every step's losses and stops the training when one is not finite."""

    def __init__(self, on_losses: Callable[[int, dict[str, float]], None], late: bool) -> None:
        self._on_losses = on_losses
        self._late = late
        self._pending: _Pending | None = None

    def take(
        self, step: int, losses: dict[str, torch.Tensor], targets: list[dict[str, Any]], learning_rate: float
    ) -> None:
        """Take the losses of a step and the learning rate it was made with."""
        values = torch.stack([loss.detach().float().reshape(()) for loss in losses.values()])
        if self._late:
            values = values.to("cpu", non_blocking=True)
        ids = [target.get("image_id") for target in targets]
        before, self._pending = self._pending, (step, tuple(losses), values, ids, learning_rate)
        if before is not None:
            self._read(before)
        if not self._late:
            self.finish()

    def finish(self) -> None:
        """Read what is still pending."""
        if self._pending is not None:
            if self._late and torch.cuda.is_available():
                torch.cuda.synchronize()
            pending, self._pending = self._pending, None
            self._read(pending)

    def _read(self, pending: _Pending) -> None:
        step, names, values, ids, learning_rate = pending
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

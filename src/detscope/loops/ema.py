"""An exponential moving average of the weights, which often detects better than the last ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class WeightAverage:
    """Keeps the average of a model's parameters and a copy of its buffers."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self.updates = 0
        self._own = _find_floats(model)
        self._average = [tensor.detach().clone() for tensor in self._own]

    @torch.no_grad()
    def add_step(self) -> None:
        """Take the weights of a step in; the first steps count more, as they start from noise."""
        self.updates += 1
        decay = min(self._decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self._average, self._own, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with averaged weights, for the time of the block."""
        self._swap_weights()
        try:
            yield
        finally:
            self._swap_weights()

    @torch.no_grad()
    def _swap_weights(self) -> None:
        for own, average in zip(self._own, self._average, strict=True):
            kept = own.clone()
            own.copy_(average)
            average.copy_(kept)

    def list_tensors(self) -> dict[str, torch.Tensor]:
        """The average, for a checkpoint."""
        return {str(index): tensor for index, tensor in enumerate(self._average)}

    @torch.no_grad()
    def restore_from(self, tensors: dict[str, torch.Tensor], updates: int) -> None:
        """Continue from a checkpoint."""
        self.updates = updates
        for index, average in enumerate(self._average):
            average.copy_(tensors[str(index)])


def _find_floats(model: nn.Module) -> list[torch.Tensor]:
    """Parameters and the running figures of batch norm: each once, also where modules share them."""
    found = [*model.parameters(), *model.buffers()]
    return [tensor for tensor in dict.fromkeys(found) if tensor.is_floating_point() and tensor.numel()]

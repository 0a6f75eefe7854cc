"""Where a tensor would live if the model were on a device.

On a CPU every tensor lies in the same memory, and `.cpu()` gives back the same tensor. So it is followed what
each would be: what the step began with (parameters, batches) is the device's, and so is what is made from it;
what `.cpu()` and its like give back, what comes from numpy, and what a factory makes without being told a
device is the host's, and so is what is made from that alone. On a real device the tensors say it themselves.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch


class TensorPlaces:
    """Tensors of the host, by identity; all others are the device's."""

    def __init__(self, real_device: bool) -> None:
        self._real_device = real_device
        self._host: dict[int, weakref.ref[torch.Tensor]] = {}
        self._batch: dict[int, weakref.ref[torch.Tensor]] = {}  # that a loader gave

    @property
    def knows_devices(self) -> bool:
        """Whether tensors say themselves where they live."""
        return self._real_device

    def add_batch(self, tensors: Iterable[torch.Tensor]) -> None:
        """What a loader gave is the device's, but for a copy to it."""
        self._batch = {key: known for key, known in self._batch.items() if known() is not None}
        self._batch |= {id(tensor): weakref.ref(tensor) for tensor in tensors}

    def forget_host(self) -> None:
        """A step has ended: what it left counts as the device's."""
        self._host.clear()

    def comes_from_host(self, tensor: torch.Tensor, moved: torch.Tensor) -> bool:
        """Whether moving it was a copy to the device."""
        if self._real_device:
            return tensor.is_cpu and not moved.is_cpu
        known = self._batch.get(id(tensor))
        return self.is_on_host(tensor) or (known is not None and known() is tensor)

    def goes_to_host(self, tensor: torch.Tensor, moved: torch.Tensor) -> bool:
        """Whether moving it was a copy to the host, as the tensors say themselves."""
        return self._real_device and moved.is_cpu and not tensor.is_cpu

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        """Whether it lives, or would live, in the host's memory."""
        if self._real_device:
            return tensor.is_cpu
        known = self._host.get(id(tensor))
        return known is not None and known() is tensor

    def put_on_host(self, tensor: torch.Tensor) -> None:
        """It was made there, or copied to it."""
        if not self._real_device:
            key, host = id(tensor), self._host
            host[key] = weakref.ref(tensor, lambda _: host.pop(key, None))

    def put_on_device(self, tensor: torch.Tensor) -> None:
        """It was made there, or copied to it."""
        self._host.pop(id(tensor), None)
        self._batch.pop(id(tensor), None)

    def follow_operator(self, taken: Iterable[torch.Tensor], given: Iterable[torch.Tensor]) -> bool:
        """What an operator makes lies where its inputs do; whether the device has any part in it."""
        inputs = list(taken)
        on_host = bool(inputs) and all(map(self.is_on_host, inputs))
        if on_host:
            for tensor in given:
                self.put_on_host(tensor)
        return not on_host


def tensors_of(value: Any) -> Iterable[torch.Tensor]:
    """Tensors among an operator's arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_of(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_of(one)

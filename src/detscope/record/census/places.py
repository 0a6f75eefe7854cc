"""Where a tensor would live if the model were on a device.

On a CPU every tensor lies in the same memory, and `.cpu()` gives back the same tensor. So it is followed what
each would be: what the step began with (parameters, batches) is the device's, and so is what is made from it;
what `.cpu()` and its like give back, what comes from numpy, and what a factory makes without being told a
device is the host's, and so is what is made from that alone. On a real device the tensors say it themselves.
The script gets the very objects that it would get without us: where a copy is the tensor itself, the code
tells which of the two is meant (calls.py).
"""

from __future__ import annotations

import sys
import weakref
from collections import UserDict
from collections.abc import Iterable
from types import FrameType
from typing import Any, NamedTuple

import torch

from detscope.record.census.calls import Loan, look_at_call
from detscope.record.model.borders import attributes_of, items_of

_DEEPEST = 8  # lists, dicts and objects around a tensor of a batch


class _HostTensor(NamedTuple):
    tensor: weakref.ref[torch.Tensor]
    is_generated: bool  # from sizes and numbers of the code alone, as by arange: no data came from anywhere


class _BatchTensor(NamedTuple):
    tensor: weakref.ref[torch.Tensor]
    is_unused: bool  # no model has it: what is made of it lies beside it, and may have to be moved too


class TensorPlaces:
    """Tensors of the host, by identity; all others are the device's."""

    def __init__(self, real_device: bool) -> None:
        self._real_device = real_device
        self._host: dict[int, _HostTensor] = {}
        self._batch: dict[int, _BatchTensor] = {}  # that a loader gave
        self._lent: dict[
            int, tuple[weakref.ref[torch.Tensor], Loan]
        ] = {}  # that stand for a copy for a while

    @property
    def knows_devices(self) -> bool:
        """Whether tensors say themselves where they live."""
        return self._real_device

    def add_batch(self, tensors: Iterable[torch.Tensor]) -> None:
        """What a loader gave is the device's, but for a copy to it."""
        self._batch = {key: known for key, known in self._batch.items() if known.tensor() is not None}
        for tensor in tensors:
            self._batch[id(tensor)] = _BatchTensor(weakref.ref(tensor), is_unused=True)
            self._host.pop(id(tensor), None)

    def is_to_be_moved(self, tensor: torch.Tensor) -> bool:
        """Whether a loader gave it, or what it was made of, and it has come to no model yet."""
        known = self._batch.get(id(tensor))
        return known is not None and known.is_unused and known.tensor() is tensor

    def forget_host(self) -> None:
        """A step has ended: what it left counts as the device's."""
        self._host.clear()
        self._lent.clear()

    def comes_from_host(self, tensor: torch.Tensor, moved: torch.Tensor) -> bool:
        """Whether moving it was a copy to the device."""
        if self._real_device:
            return tensor.is_cpu and not moved.is_cpu
        known = self._batch.get(id(tensor))
        return self.is_on_host(tensor) or (known is not None and known.tensor() is tensor)

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        """Whether it lives, or would live, in the host's memory."""
        if self._real_device:
            return tensor.is_cpu
        known = self._host.get(id(tensor))
        if known is not None and known.tensor() is tensor:
            return True
        lent = self._lent.get(id(tensor))
        if lent is None:
            return False
        if lent[0]() is tensor and lent[1].lasts(sys._getframe(1)):
            return True
        del self._lent[id(tensor)]
        return False

    def is_generated(self, tensor: torch.Tensor) -> bool:
        """Whether it was made on the host of no data: it could have been made on the device, or once."""
        known = self._host.get(id(tensor))
        return known is not None and known.tensor() is tensor and known.is_generated

    def is_copied_again(self, tensor: torch.Tensor, frame: FrameType | None) -> bool:
        """Whether the call that lent it is made once more: a loop copies the same tensor every time."""
        lent = self._lent.get(id(tensor))
        return lent is not None and lent[0]() is tensor and frame is not None and lent[1].is_call(frame)

    def take_copy(self, copy: torch.Tensor, tensor: torch.Tensor, frame: FrameType | None) -> None:
        """It was copied to the host, by a call in this frame; on a CPU the copy may be the tensor."""
        look = None if frame is None or copy is not tensor else look_at_call(frame.f_code, frame.f_lasti)
        if look is None or frame is None or look.kept or self._real_device:
            self.put_on_host(copy)
        else:
            loan = Loan(id(frame), frame.f_code, frame.f_lasti, look.lines)
            self._lent[id(tensor)] = (weakref.ref(tensor), loan)

    def put_on_host(self, tensor: torch.Tensor, is_generated: bool = False) -> None:
        """It was made there, or copied to it."""
        key, host = id(tensor), self._host
        if self._real_device and not is_generated:
            host.pop(key, None)
        else:
            host[key] = _HostTensor(weakref.ref(tensor, lambda _: host.pop(key, None)), is_generated)

    def put_on_device(self, tensor: torch.Tensor, is_batch: bool = False) -> None:
        """It was made there, or copied to it; what a loader gave may still have to be."""
        self._host.pop(id(tensor), None)
        self._lent.pop(id(tensor), None)
        known = self._batch.pop(id(tensor), None)
        if is_batch and known is not None:
            self._batch[id(tensor)] = known._replace(is_unused=False)

    def follow_operator(self, taken: Iterable[torch.Tensor], given: Iterable[torch.Tensor]) -> bool:
        """What an operator makes lies where its inputs do; whether the device has any part in it."""
        inputs, given = list(taken), list(given)
        on_host = bool(inputs) and all(map(self.is_on_host, inputs))
        is_generated = on_host and all(map(self.is_generated, inputs))
        for tensor in given if on_host or self._host else ():
            if not is_generated and self.is_generated(tensor):
                self._write_data(tensor)
            elif on_host:
                self.put_on_host(tensor, is_generated)
        if not on_host and inputs and all(self.is_to_be_moved(one) or self.is_on_host(one) for one in inputs):
            self._batch |= {id(one): _BatchTensor(weakref.ref(one), is_unused=True) for one in given}
        return not on_host

    def _write_data(self, tensor: torch.Tensor) -> None:
        """Data was written into what had been made of none, and so into all that share its memory."""
        memory = tensor.untyped_storage().data_ptr()
        for known in list(self._host.values()):
            other = known.tensor()
            if other is not None and other.untyped_storage().data_ptr() == memory:
                self.put_on_host(other)


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


def tensors_in_batch(batch: Any, depth: int = 0) -> Iterable[torch.Tensor]:
    """Tensors that a loader gave, also in objects that can be moved, as a NestedTensor is.

    No code of theirs runs: a batch that answers to every name would answer to ours too.
    """
    kind = type(batch)
    if issubclass(kind, torch.Tensor):
        yield batch
    elif depth < _DEEPEST:
        is_container = issubclass(kind, (list, tuple, dict, UserDict))
        moves = not is_container and hasattr(kind, "to")
        held = list(attributes_of(batch, kind).values()) if moves else items_of(batch, kind)
        for one in held:
            yield from tensors_in_batch(one, depth + 1)


def find_counters(optimizers: Iterable[Any]) -> Iterable[torch.Tensor]:
    """Numbers of steps that optimizers keep: on the host, unless a step is to be captured or is fused."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if not (group.get("capturable") or group.get("fused")):
                known = (optimizer.state.get(one) for one in group["params"])
                yield from tensors_of([state.get("step") for state in known if state])

"""Peak of the bytes that torch's CPU allocator has given out: what is held, and what one step adds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

_MEMORY = "[memory]"


def held_bytes(module: nn.Module, optimizer: Any, batch: Any) -> int:
    """Bytes of weights, gradients, optimizer state and batch between two steps; shared memory once."""
    storages: dict[int, int] = {}
    for tensor in _tensors((module, optimizer, batch)):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _tensors(value: Any) -> Iterator[Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
        if value.grad is not None:
            yield value.grad
    elif isinstance(value, torch.nn.Module):
        yield from _tensors([*value.parameters(), *value.buffers()])
    elif isinstance(value, torch.optim.Optimizer):
        yield from _tensors(list(value.state.values()))
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value):
        yield from _tensors([getattr(value, part.name) for part in fields(value)])


def allocated_peak(step: Callable[[], object]) -> int:
    """The most bytes alive at a moment of `step` above those alive at its beginning."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as session:
        step()
    events = session.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), index, event.nbytes())
        for index, event in enumerate(events)
        if event.name() == _MEMORY and event.device_type().name == "CPU"
    )
    live = peak = 0
    for _, _, size in changes:
        live += size
        peak = max(peak, live)
    return peak

"""What is alive, read from the objects themselves: parameters, buffers, gradients, optimizer state, batch."""

from __future__ import annotations

import weakref
from collections import Counter, UserDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import nn

from detscope.machine.accelerator import find_accelerator
from detscope.machine.device_memory import round_block
from detscope.record.foreign import WeakObjects
from detscope.record.model.borders import attributes_of, items_of

PARAMETERS, GRADIENTS, OPTIMIZER, INPUTS = "parameters", "gradients", "optimizer", "inputs"
_DEEPEST = 6  # nesting of a batch or an optimizer's state that is followed


class HeldTensor(NamedTuple):
    """A tensor that some object holds; tensors of one storage have one address."""

    address: int
    bytes: int  # of the whole storage
    device: str
    category: str
    name: str
    shape: str
    dtype: str
    outside: bool  # in memory that is not the allocator's: pinned, shared with workers, numpy's


def format_shape(shape: Sequence[int]) -> str:
    """`2x3x64`; a scalar is `scalar`."""
    return "x".join(map(str, shape)) or "scalar"


def format_dtype(dtype: torch.dtype) -> str:
    """`float32`."""
    return str(dtype).removeprefix("torch.")


def describe_tensor(tensor: torch.Tensor, category: str, name: str) -> HeldTensor | None:
    """What a tensor holds; None where it has no memory of its own."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    try:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, ValueError):  # a wrapper of `torch.func`, a lazy parameter
        return None
    if not address or not size:
        return None
    on_host = tensor.device.type == "cpu"
    outside = on_host and (not storage.resizable() or storage.is_shared() or _is_pinned(tensor))
    shape, dtype = format_shape(tensor.shape), format_dtype(tensor.dtype)
    return HeldTensor(address, size, str(tensor.device), category, name, shape, dtype, outside)


def _is_pinned(tensor: torch.Tensor) -> bool:
    """Asked only once a device's driver runs: asking would start it."""
    return (torch.cuda.is_initialized() or torch.xpu.is_initialized()) and tensor.is_pinned()


def describe_inputs(batch: Any) -> list[tuple[torch.Tensor, HeldTensor]]:
    """A batch's tensors; a storage that is more than its first tensor is shown as the bytes it is."""
    found = [
        (tensor, describe_tensor(tensor, INPUTS, name)) for name, tensor in find_named_tensors(batch, "batch")
    ]
    inside = Counter(item.address for _, item in found if item is not None)
    result = []
    for tensor, item in found:
        if item is None:
            continue
        if others := inside[item.address] - 1:
            item = item._replace(name=f"{item.name} and {others} more")
        if others or tensor.nbytes < item.bytes:
            item = item._replace(shape=format_shape([item.bytes]), dtype="uint8")
        result.append((tensor, item))
    return result


class LiveObjects:
    """A model and its optimizers, asked for what they hold at this moment."""

    def __init__(self, model: nn.Module, optimizers: WeakObjects[torch.optim.Optimizer]) -> None:
        self._model = weakref.ref(model)
        self._optimizers = optimizers
        self._known: list[tuple[str, weakref.ref[torch.Tensor]]] = []

    def list_gradients(self) -> list[HeldTensor]:
        """Gradients of the parameters that were there when it was looked, as far as there are any."""
        parameters = ((name, reference()) for name, reference in self._known)
        with torch._C.DisableTorchFunction():  # a mode of the script's may note what is done
            found = [(name, one.grad) for name, one in parameters if one is not None]
            return _describe_all(GRADIENTS, [(name, one) for name, one in found if one is not None])

    def list_everything(self) -> list[HeldTensor]:
        """All of them; a storage that is both, such as a parameter's, counts as what comes first.

        Parameters of the model, and of optimizers where they train others, are looked for here alone: walking
        over the modules is for between steps. State is named by parameter and key: `head.weight exp_avg`.
        """
        model = self._model()
        weights: list[tuple[str, torch.Tensor]] = [] if model is None else list(model.named_parameters())
        names = {id(parameter): name for name, parameter in weights}
        for optimizer in self._optimizers:
            for number, group in enumerate(optimizer.param_groups):
                for position, parameter in enumerate(group["params"]):
                    if id(parameter) not in names:
                        name = names[id(parameter)] = f"(optimizer).group{number}_{position}"
                        weights.append((name, parameter))
        self._known = [(name, weakref.ref(one)) for name, one in weights]
        if model is not None:
            weights += model.named_buffers()
        state = [
            (f"{names.get(id(parameter), '(optimizer)')} {key.strip('.')}", tensor)
            for optimizer in self._optimizers
            for parameter, states in optimizer.state.items()
            for key, tensor in find_named_tensors(states, "")
        ]
        return [
            *_describe_all(PARAMETERS, weights),
            *self.list_gradients(),
            *_describe_all(OPTIMIZER, state),
        ]


def sum_by_category(everything: Sequence[HeldTensor]) -> dict[str, int]:
    """Sizes counted from the live tensors, each storage once."""
    sizes = dict.fromkeys((PARAMETERS, GRADIENTS, OPTIMIZER), 0)
    first_of_storage = {item.address: item for item in reversed(everything)}
    for item in first_of_storage.values():
        sizes[item.category] += item.bytes
    return sizes


def find_named_tensors(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors inside nested containers, each with where it was found: `batch[1][0].boxes`."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        yield path, value
    elif depth < _DEEPEST:
        if issubclass(kind, dict):
            for key, item in dict.items(value):
                yield from find_named_tensors(item, f"{path}.{key}", depth + 1)
        elif issubclass(kind, UserDict):
            yield from find_named_tensors(attributes_of(value, kind).get("data"), path, depth + 1)
        elif issubclass(kind, (list, tuple)):
            for position, item in enumerate(items_of(value, kind)):
                yield from find_named_tensors(item, f"{path}[{position}]", depth + 1)
        else:
            for item in items_of(value, kind):
                yield f"{path}.tensors", item


def _describe_all(category: str, named: Iterable[tuple[str, torch.Tensor]]) -> list[HeldTensor]:
    found = (describe_tensor(tensor, category, name) for name, tensor in named)
    return [item for item in found if item is not None]


LARGEST_FREE = 5
_STATUS = {"VmRSS:": "process", "VmHWM:": "process_peak"}
Level = tuple[int, int, str, str, int]  # a row of `memory_levels`


def read_levels(step: int, workers: Iterable[int], device: str) -> list[Level]:
    """All levels of this moment."""
    time_ns = perf_counter_ns()
    found = list(read_process_levels("self").items())
    for worker in sorted(workers):
        resident = read_process_levels(str(worker)).get("process")
        if resident is not None:  # else it has ended
            found.append((f"worker {worker}", resident))
    rows: list[Level] = [(time_ns, step, "cpu", level, size) for level, size in found]
    return rows + [(time_ns, step, device, level, size) for level, size in _read_device_levels(device)]


def _read_device_levels(device: str) -> Iterator[tuple[str, int]]:
    """What the allocator reserved, what of it is free and where, and what else is used on the device."""
    memory = find_accelerator(device).read_memory()
    if memory is None or memory.reserved is None:
        return
    yield "reserved", memory.reserved
    if memory.free is not None and memory.total is not None:
        # the driver's context, libraries, and whoever else computes there
        yield "beside", max(0, memory.total - memory.free - memory.reserved)
    segments = _list_segments(device)
    if segments is None:
        return
    free = [[block["size"] for block in blocks if block["state"] == "inactive"] for blocks in segments]
    # between blocks in use: it can neither be given back nor serve a larger request
    yield (
        "fragmented",
        sum(sum(own) for own, blocks in zip(free, segments, strict=True) if len(own) < len(blocks)),
    )
    for size in sorted((size for own in free for size in own), reverse=True)[:LARGEST_FREE]:
        yield "largest_free", size


def read_process_levels(pid: str) -> dict[str, int]:
    """Resident bytes of a process, now and at most; empty where they cannot be read."""
    levels = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            key, _, rest = line.partition("\t")
            if key in _STATUS:
                levels[_STATUS[key]] = int(rest.split()[0]) * 1024
    if not levels:  # there is no /proc
        import psutil

        with suppress(psutil.Error):
            levels["process"] = psutil.Process(None if pid == "self" else int(pid)).memory_info().rss
    return levels


def _list_segments(device: str) -> list[list[dict[str, Any]]] | None:
    """What the caching allocator has: segments of blocks, in use and free; None where it does not tell."""
    accelerator = find_accelerator(device)
    snapshot = getattr(getattr(torch, accelerator.kind, None), "memory_snapshot", None)
    if snapshot is None:
        return None
    return [segment["blocks"] for segment in snapshot() if segment["device"] == accelerator.index]


def find_block_sizes(device: str) -> Callable[[HeldTensor], int]:
    """How many bytes a tensor's block takes: on a device more than its storage, for sizes are rounded up."""
    if find_accelerator(device).is_host:
        return lambda held: held.bytes
    blocks = (block for segment in _list_segments(device) or () for block in segment)
    sizes = {block.get("address"): int(block["size"]) for block in blocks}
    return lambda held: (
        held.bytes if held.device == "cpu" else sizes.get(held.address, round_block(held.bytes))
    )

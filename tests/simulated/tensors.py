"""Tensors that look as if they lived on a device: CPU tensors whose storage bears the device's number.

torch keeps a storage's Python object for as long as the storage lives, so a mark on it follows all views,
parameters and gradients, and its end is the end of the memory. `torch.Tensor` is a class of Python:
attributes put there hide those of C below it, in every thread. What computes is the CPU; torch's C++ is never
asked for a device.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from typing import Any

import torch

from simulated.device import Machine

_base = torch._C.TensorBase
Put = Callable[[Any, str, Any], object]
_GARBAGE = {torch.bool: False}


def find_device(tensor: torch.Tensor) -> int | None:
    """The number of the device where a tensor lives; None on the host."""
    try:
        return getattr(_base.untyped_storage(tensor), "simulated_device", None)
    except (RuntimeError, NotImplementedError):  # without storage: meta, sparse, inside of transforms
        return None


def is_pinned(tensor: torch.Tensor) -> bool:
    return bool(getattr(_base.untyped_storage(tensor), "simulated_pinned", False))


def pin(tensor: torch.Tensor) -> torch.Tensor:
    _base.untyped_storage(tensor).simulated_pinned = True  # type: ignore[attr-defined]
    return tensor


@dataclass(frozen=True)
class Journey:
    """A copy that `Tensor.to` has begun: dispatched as `aten::_to_copy`, which does not know."""

    device: int | None
    non_blocking: bool


class _OfThread(local):
    journey: Journey | None = None


class TensorSurface:
    """What tensors say of themselves, what they take, and copies that arrive late."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.here = _OfThread()
        self.out_of_memory: type[Exception] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._late: list[tuple[int, torch.Tensor, torch.Tensor]] = []  # when, where to, what
        machine.clock.when_moved.append(self.settle_copies)

    # ---- memory

    def settle(self, tensor: torch.Tensor, device: int) -> None:
        """A new tensor lives on a device from now on, if there is room."""
        storage: Any = _base.untyped_storage(tensor)
        if getattr(storage, "simulated_device", None) is not None:
            return
        memory, size = self.machine.devices[device].memory, storage.nbytes()
        key = storage._cdata
        if not memory.allocate(key, storage.data_ptr(), size):
            raise self.make_memory_error(device, size)
        storage.simulated_device = device

        def gone(_: Any) -> None:
            memory.release(key)
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, gone)

    def make_memory_error(self, device: int, size: int) -> Exception:
        """In the words of torch's allocator (c10/cuda/CUDACachingAllocator.cpp)."""
        memory = self.machine.devices[device].memory
        free, used = memory.free / 2**20, (memory.reserved + memory.context) / 2**30
        return self.out_of_memory(
            f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU {device} has a total capacity"
            f" of {memory.capacity / 2**30:.2f} GiB of which {free:.2f} MiB is free. Including non-PyTorch"
            f" memory, this process has {used:.2f} GiB memory in use. Of the allocated memory"
            f" {memory.allocated / 2**30:.2f} GiB is allocated by PyTorch, and"
            f" {(memory.reserved - memory.allocated) / 2**20:.2f} MiB is reserved by PyTorch but unallocated."
        )

    # ---- copies that arrive late

    def fill_late(self, target: torch.Tensor, old: torch.Tensor | None, moment_ns: int) -> None:
        """Give a tensor of the host its values when the clock has passed; until then others stand there."""
        values = target.clone()
        if old is not None:
            target.copy_(old)
        elif target.is_floating_point():
            target.fill_(float("nan"))
        else:
            target.fill_(_GARBAGE.get(target.dtype, -77))
        self._late.append((moment_ns, target, values))
        self.settle_copies()

    def settle_copies(self) -> None:
        """Write what has arrived by now; by address, so that nobody notices."""
        now_ns = self.machine.clock.now()
        for entry in [one for one in self._late if one[0] <= now_ns]:
            self._late.remove(entry)
            _, target, values = entry
            ctypes.memmove(_base.data_ptr(target), _base.data_ptr(values), values.numel() * values.itemsize)

    # ---- journeys

    @contextmanager
    def travel(self, journey: Journey) -> Iterator[None]:
        before, self.here.journey = self.here.journey, journey
        try:
            yield
        finally:
            self.here.journey = before

    def resolve(self, device: Any) -> int | None:
        """The number that a device of torch's means now; starts the driver, as torch does."""
        device = torch.device(device)
        if device.type != "cuda":
            return None
        torch.cuda._lazy_init()
        index = self.machine.here.device if device.index is None else device.index
        if index >= len(self.machine.devices):
            raise self.machine.make_error("invalid device ordinal")
        return index

    def move(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As `Tensor.to`: the tensor itself where nothing has to change."""
        if args and isinstance(args[0], torch.Tensor):
            args, kwargs = args[1:], {"device": args[0].device, "dtype": args[0].dtype, **kwargs}
        copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and device.type not in ("cpu", "cuda"):
            return _base.to(tensor, device, dtype or tensor.dtype)
        there = here = find_device(tensor)
        if device is not None:
            there = self.resolve(device)
        options = {"dtype": dtype or tensor.dtype, "copy": copy or there != here}
        if memory_format is not None:
            options["memory_format"] = memory_format
        if there == here:
            return _base.to(tensor, **options)
        with self.travel(Journey(there, non_blocking)):
            return _base.to(tensor, **options)

    def install(self, put: Put) -> None:
        """Put everything on `torch.Tensor`."""
        machine, surface = self.machine, self

        def device_of(tensor: torch.Tensor) -> torch.device:
            index = find_device(tensor)
            return _base.device.__get__(tensor) if index is None else torch.device("cuda", index)

        def read(name: str) -> Callable[..., Any]:
            """Reading all values on the host waits for a copy."""

            def read_values(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                surface.settle_copies()
                if find_device(tensor) is not None:
                    tensor = tensor.detach().cpu()
                return getattr(_base, name)(tensor, *args, **kwargs)

            return functools.wraps(getattr(_base, name))(read_values)

        def numpy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            surface.settle_copies()
            if find_device(tensor) is not None:
                raise TypeError(
                    f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() to copy the"
                    " tensor to host memory first."
                )
            return _base.numpy(tensor, *args, **kwargs)

        def show(tensor: torch.Tensor, *, tensor_contents: Any = None) -> str:
            if find_device(tensor) is not None:
                machine.synchronize_stream(machine.find_stream(find_device(tensor)))
            surface.settle_copies()
            return str(torch._tensor_str._str(tensor, tensor_contents=tensor_contents))

        def pinned(tensor: torch.Tensor, *_device: Any) -> torch.Tensor:
            if find_device(tensor) is not None:
                raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
            torch.cuda._lazy_init()
            machine.forbid_while_capturing()  # cudaHostAlloc
            return tensor if is_pinned(tensor) else pin(tensor.clone())

        def clone_storage(storage: Any) -> Any:  # as deepcopy does
            device = getattr(storage, "simulated_device", None)
            if device is None:
                return plain_clone(storage)
            made = torch.UntypedStorage(storage.nbytes())
            surface.settle(torch.empty(0, dtype=torch.uint8).set_(made), device)  # before it is copied there
            return made.copy_(storage, False)

        def with_index(plain: Callable[..., Any]) -> Callable[..., Any]:
            """Of "cuda" alone C++ would ask for the current device, before anything is dispatched."""

            def make(data: Any, *args: Any, device: Any = None, **options: Any) -> torch.Tensor:
                if device is not None:
                    device = torch.device(device)
                    if device.type == "cuda":
                        device = torch.device("cuda", surface.resolve(device))
                return plain(data, *args, device=device, **options)

            return functools.wraps(plain)(make)

        def new_tensor(tensor: torch.Tensor, data: Any, **options: Any) -> torch.Tensor:
            return torch.tensor(data, **{"dtype": tensor.dtype, "device": tensor.device, **options})

        for name in ("tensor", "as_tensor"):
            put(torch, name, with_index(getattr(torch, name)))
        put(torch._C, "_group_tensors_by_device_and_dtype", _group_tensors)
        plain_clone = torch.UntypedStorage.clone
        put(torch.UntypedStorage, "clone", clone_storage)
        for name, stand_in in {
            "device": property(device_of),
            "is_cuda": property(lambda tensor: find_device(tensor) is not None),
            "is_cpu": property(lambda t: find_device(t) is None and _base.is_cpu.__get__(t)),
            "get_device": lambda tensor: -1 if find_device(tensor) is None else find_device(tensor),
            "to": self.move,
            "cpu": lambda tensor, **options: surface.move(tensor, "cpu", **options),
            "cuda": lambda tensor, device=None, non_blocking=False, **options: surface.move(
                tensor, _name_device(device), non_blocking=non_blocking, **options
            ),
            "pin_memory": pinned,
            "is_pinned": lambda tensor, *_device: is_pinned(tensor),
            "record_stream": lambda _tensor, _stream: None,
            "new_tensor": new_tensor,
            "tolist": read("tolist"),
            "numpy": numpy,
            "__repr__": show,
        }.items():
            put(torch.Tensor, name, _bind(stand_in))


def _group_tensors(lists: Any, with_indices: bool = False) -> dict[Any, Any]:
    """As foreach functions and optimizers do: C++ would ask the tensors themselves where they live."""
    grouped: dict[Any, Any] = {}
    for index, first in enumerate(lists[0]):
        own, indices = grouped.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
        for gathered, given in zip(own, lists, strict=True):
            gathered += given[index : index + 1]  # some lists are empty
        indices += [index] * with_indices
    return grouped


def _name_device(device: Any) -> torch.device:
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")


def _bind(stand_in: Any) -> Any:
    """A bound method would not become one of the tensor's."""
    if isinstance(stand_in, property):
        return stand_in

    def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return stand_in(tensor, *args, **kwargs)

    return method

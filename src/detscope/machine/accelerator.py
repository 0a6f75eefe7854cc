"""The device a model computes on: one small interface to CUDA, ROCm, XPU, MPS; a CPU is the null device.

Whatever differs between torch's accelerators is asked here and nowhere else: marks in a stream's queue,
waiting, capture, memory, what the profiler sees. What a device cannot do stands in `unknown` with the reason.
Nothing here starts a device's driver that the program has not started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AllocatorLevels:
    """Bytes of a device, as torch's allocator and the driver know them; None: this device does not say."""

    allocated: int | None = None
    reserved: int | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    free: int | None = None  # of the whole device, whoever uses it
    total: int | None = None


class Accelerator:
    """The null device: a CPU computes while it is told to, so its clock is the host's."""

    has_clock = False  # whether it has time of its own that can be read
    activity: str | None = None  # the profiler's name for what runs on it
    pins_memory = False  # whether copies from pinned memory go beside the host's work
    collectives = "gloo"  # torch.distributed's backend between devices of this kind

    def __init__(self, name: str) -> None:
        self.name = name  # as torch writes it: "cpu", "cuda:1"
        self.kind, _, index = name.partition(":")
        self.index = int(index or 0)
        self.unknown: dict[str, str] = {}  # what cannot be told of it (clock, kernels, memory), and why

    def make_mark(self) -> Any:
        """Something that can be put into a stream's queue."""
        raise NotImplementedError(f"{self.name} has no clock of its own")

    def put_mark(self, mark: Any) -> int:
        """Put it into the queue of this thread's current stream; the stream's number."""
        raise NotImplementedError(f"{self.name} has no clock of its own")

    def has_passed(self, mark: Any) -> bool:
        """Whether the device has passed a mark; never waits."""
        return bool(mark.query())

    def elapsed_ns(self, first: Any, last: Any) -> int:
        """Device time between two marks that it has passed."""
        elapsed_ms: float = first.elapsed_time(last)
        return round(elapsed_ms * 1e6)

    @property
    def is_host(self) -> bool:
        """Whether it is the CPU itself: calls are done when they return, its memory is the process's."""
        return self.kind == "cpu"

    def is_capturing(self) -> bool:
        """Whether this thread's current stream is being captured into a graph: then nothing may be asked."""
        return False

    def wait(self) -> None:
        """Wait until the device has done all that is queued."""

    def use(self) -> None:
        """Make it the current device of this thread."""

    def read_memory(self) -> AllocatorLevels | None:
        """Memory of the device; None of a CPU, whose memory is the process's."""
        return None

    def forget_peaks(self) -> None:
        """Let the peaks of memory begin anew."""

    def limit_memory(self, limit_bytes: int | None) -> bool:  # noqa: ARG002
        """Let this process allocate so much on it and no more (None: all); False: it cannot be limited."""
        return False

    def read_random_state(self) -> Any:
        """The state of the device's own generator; None of a CPU, whose generator is torch's."""
        return None

    def restore_random_state(self, state: Any) -> None:
        """Put such a state back."""


class QueuedAccelerator(Accelerator):
    """Any accelerator of torch's, by what all of them have: `torch.accelerator`, `torch.Event`."""

    has_clock = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        import torch

        self._torch = torch
        self._device = torch.device(self.kind, self.index)
        module = getattr(torch, self.kind, None)
        self._module: Any = module  # torch.cuda, torch.xpu, ...
        if self.activity is None or not hasattr(torch.profiler.ProfilerActivity, self.activity):
            self.activity = None
            self.unknown["kernels"] = f"torch's profiler does not see what runs on {self.kind}"

    def make_mark(self) -> Any:
        return self._torch.Event(self._device, enable_timing=True)

    def put_mark(self, mark: Any) -> int:
        stream = self._torch.accelerator.current_stream(self._device)
        mark.record(stream)
        return int(stream.stream_id)

    def wait(self) -> None:
        self._torch.accelerator.synchronize(self._device)

    def use(self) -> None:
        setter = getattr(self._module, "set_device", None)
        if setter is not None:
            setter(self._device)

    def read_memory(self) -> AllocatorLevels | None:
        def ask(name: str) -> int | None:
            reader = getattr(self._module, name, None)
            return None if reader is None else int(reader(self._device))

        free_and_total = getattr(self._module, "mem_get_info", None)
        free, total = (None, None) if free_and_total is None else free_and_total(self._device)
        return AllocatorLevels(
            ask("memory_allocated"),
            ask("memory_reserved"),
            ask("max_memory_allocated"),
            ask("max_memory_reserved"),
            free,
            total,
        )

    def forget_peaks(self) -> None:
        reset = getattr(self._module, "reset_peak_memory_stats", None)
        if reset is not None:
            reset(self._device)

    def limit_memory(self, limit_bytes: int | None) -> bool:
        setter = getattr(self._module, "set_per_process_memory_fraction", None)
        memory = self.read_memory()
        total = None if memory is None else memory.total
        if setter is None or total is None:
            return False
        setter(1.0 if limit_bytes is None else min(1.0, limit_bytes / total), self._device)
        return True

    def read_random_state(self) -> Any:
        return self._module.get_rng_state(self._device)

    def restore_random_state(self, state: Any) -> None:
        self._module.set_rng_state(state, self._device)


class RawStreamAccelerator(QueuedAccelerator):
    """CUDA, ROCm and XPU: the same, as cheaply as torch allows, for marks are put into every step.

    A stream is known by its raw number, asked by one call of C; its object is made once. `record` is the base
    class's: the Python one above it asks for the current stream again.
    """

    pins_memory = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        torch, module = self._torch, self._module
        self._event = module.Event
        base = getattr(torch._C, f"_{self.kind.capitalize()}EventBase", None)
        self._record: Callable[..., Any] = module.Event.record
        if base is not None and issubclass(module.Event, base):
            self._record = getattr(base, "record", self._record)
        # asked by their names at every call: a profiler, or a test, may have put something else there
        self._raw_name = f"_{self.kind}_getCurrentRawStream"
        self._streams: dict[int, Any] = {}

    def make_mark(self) -> Any:
        return self._event(enable_timing=True)

    def put_mark(self, mark: Any) -> int:
        raw: int = getattr(self._torch._C, self._raw_name)(self.index)
        stream = self._streams.get(raw)
        if stream is None:
            stream = self._streams[raw] = self._module.current_stream(self._device)
        self._record(mark, stream)
        return raw

    def wait(self) -> None:
        self._module.synchronize(self._device)


class CudaAccelerator(RawStreamAccelerator):
    """CUDA, and ROCm, which torch gives the same names."""

    activity = "CUDA"
    collectives = "nccl"  # ROCm's own has the same name

    def is_capturing(self) -> bool:
        return bool(self._module.is_current_stream_capturing())


class XpuAccelerator(RawStreamAccelerator):
    """Intel's devices."""

    activity = "XPU"
    collectives = "xccl"


class MpsAccelerator(QueuedAccelerator):
    """Apple's devices: one stream, events of their own kind, no profiler."""

    def make_mark(self) -> Any:
        return self._module.event.Event(enable_timing=True)

    def put_mark(self, mark: Any) -> int:
        mark.record()
        return 0

    def wait(self) -> None:
        self._module.synchronize()

    def read_memory(self) -> AllocatorLevels | None:
        total = getattr(self._module, "recommended_max_memory", lambda: None)()
        allocated = int(self._module.current_allocated_memory())
        return AllocatorLevels(allocated, int(self._module.driver_allocated_memory()), total=total)

    def limit_memory(self, limit_bytes: int | None) -> bool:
        total = getattr(self._module, "recommended_max_memory", lambda: None)()
        if total is None:
            return False
        self._module.set_per_process_memory_fraction(1.0 if limit_bytes is None else limit_bytes / total)
        return True

    def read_random_state(self) -> Any:
        return self._module.get_rng_state()

    def restore_random_state(self, state: Any) -> None:
        self._module.set_rng_state(state)


# by torch's word for the kind of device; tests put a simulated one here
KINDS: dict[str, Callable[[str], Accelerator]] = {
    "cpu": Accelerator,
    "cuda": CudaAccelerator,
    "xpu": XpuAccelerator,
    "mps": MpsAccelerator,
}


def find_accelerator(device: str) -> Accelerator:
    """The device of this name; of an unknown kind, what all of torch's accelerators have, or nothing."""
    kind = device.partition(":")[0]
    if kind in KINDS:
        return KINDS[kind](device)
    torch, current = sys.modules.get("torch"), None
    if torch is not None:
        with suppress(RuntimeError):  # torch 2.6 raises where it was built for none
            current = torch.accelerator.current_accelerator()
    if current is not None and current.type == kind:
        return QueuedAccelerator(device)
    found = Accelerator(device)
    found.unknown["clock"] = f"torch has no timed events for a device of kind {kind!r}"
    return found

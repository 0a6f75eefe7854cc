"""The C side of torch.cuda, simulated; its Python side runs as it is.

Replaced are functions of `torch._C` (`_cuda_*`, some `_accelerator_*`) and the base classes of streams,
events and graphs; torch's own modules of streams and graphs are loaded once more on top of these. So what
`torch.cuda` promises in Python (lazy start, the error in forked children, contexts of devices and streams) is
torch's own code, not a copy of it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.cuda

from simulated.device import Capture, Device, Machine, Mark, Stream
from simulated.memory import SEGMENT
from simulated.tensors import Put

CUDA_TYPE = 1  # c10::DeviceType::CUDA


class Driver:
    """Starts once; from then on it shows the devices that it saw first, and forked children cannot use it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.started_by: list[str] | None = None  # lines of code, innermost last

    def start(self) -> None:
        if self.started_by is None:
            self.started_by = [f"{one.filename}:{one.lineno} {one.name}" for one in traceback.extract_stack()]
            self._machine.pid = os.getpid()
            self._machine.devices = self.list_visible()
            for index, device in enumerate(self._machine.devices):
                device.index = index
                for stream in device.streams.values():
                    stream.device = index

    def list_visible(self) -> list[Device]:
        """What CUDA_VISIBLE_DEVICES says now; the list ends at the first that does not exist."""
        installed = self._machine.installed
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        if wanted is None:
            return list(installed)
        found: list[Device] = []
        for word in wanted.split(","):
            by_number = [one for number, one in enumerate(installed) if word.strip() == str(number)]
            by_name = [one for one in installed if word.startswith("GPU-") and one.uuid.startswith(word)]
            if not by_number + by_name:
                break
            found += by_number + by_name
        return found

    def is_lost(self) -> bool:
        """Whether this is a child that was forked after the driver had started."""
        return self._machine.pid not in (None, os.getpid())

    def init(self) -> None:
        """As `torch._C._cuda_init`: it also puts some names into torch.cuda."""
        self.start()
        if not self._machine.devices:
            raise RuntimeError("No CUDA GPUs are available")
        torch.cuda._get_device_properties = lambda index: DeviceProperties(self._machine.devices[index])
        torch.cuda.default_generators = tuple(torch.Generator() for _ in self._machine.devices)


class DeviceProperties:
    """What `torch.cuda.get_device_properties` gives."""

    name, major, minor, multi_processor_count, warp_size = "Simulated Device", 8, 0, 108, 32
    max_threads_per_multi_processor, L2_cache_size, gcnArchName = 2048, 40 << 20, ""
    regs_per_multiprocessor, shared_memory_per_multiprocessor = 65536, 164 << 10
    is_integrated, is_multi_gpu_board = 0, 0

    def __init__(self, device: Device) -> None:
        self.total_memory = device.memory.capacity
        self.uuid = device.uuid.removeprefix("GPU-")
        self.pci_bus_id = device.index


def make_bases(machine: Machine) -> dict[str, type]:
    """Base classes in the place of those of C; `torch.cuda` derives its own from them."""

    class SimulatedStream:
        def __new__(
            cls,
            priority: int = 0,
            stream_id: int | None = None,
            device_index: int | None = None,
            device_type: int = CUDA_TYPE,
            **_others: Any,
        ) -> Any:
            made = object.__new__(cls)
            if stream_id is None:
                made.queue = machine.make_stream(machine.here.device)
            else:
                made.queue = machine.devices[device_index or 0].streams[stream_id]
            made.priority = priority
            return made

        queue: Stream
        device_type = CUDA_TYPE
        stream_id = property(lambda self: self.queue.number)
        device_index = property(lambda self: self.queue.device)
        device = property(lambda self: torch.device("cuda", self.queue.device))
        cuda_stream = property(lambda self: find_raw(self.queue))

        def query(self) -> bool:
            machine.forbid_while_capturing(self.queue)
            machine.check_device(self.queue.device)
            machine.clock.spend(machine.query_ns)
            return machine.clock.now() >= self.queue.free_at

        def synchronize(self) -> None:
            machine.synchronize_stream(self.queue)

        def is_capturing(self) -> bool:
            machine.check_device(self.queue.device)
            return self.queue.capture is not None

        def __eq__(self, other: object) -> bool:
            return self.queue is getattr(other, "queue", None)

        def __hash__(self) -> int:
            return id(self.queue)

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 0, -1

    class SimulatedEvent:
        def __new__(cls, enable_timing: bool = False, *_others: Any, **_more: Any) -> Any:
            made = object.__new__(cls)
            made.mark = Mark(enable_timing)
            return made

        mark: Mark
        cuda_event = event_id = property(lambda self: id(self.mark) if self.mark.device is not None else 0)

        @property
        def device(self) -> torch.device | None:
            return None if self.mark.device is None else torch.device("cuda", self.mark.device)

        def record(self, stream: Any = None) -> None:
            machine.record_mark(self.mark, machine.find_stream() if stream is None else stream.queue)

        def wait(self, stream: Any = None) -> None:
            machine.wait_for_mark(self.mark, machine.find_stream() if stream is None else stream.queue)

        def query(self) -> bool:
            return machine.has_passed(self.mark)

        def synchronize(self) -> None:
            machine.synchronize_mark(self.mark)

        def elapsed_time(self, end_event: Any) -> float:
            return machine.elapsed_ms(self.mark, end_event.mark)

    class SimulatedGraph:
        def __new__(cls, keep_graph: bool = False) -> Any:
            made = object.__new__(cls)
            made.captured = None
            return made

        captured: Capture | None
        _has_graph_exec = True

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            machine.begin_capture(capture_error_mode)

        def capture_end(self) -> None:
            self.captured = machine.end_capture()

        capture_end_pre = capture_end

        def capture_end_post(self) -> None:
            """Nothing is left to do."""

        instantiate = enable_debug_mode = capture_end_post

        def replay(self) -> None:
            if self.captured is None:
                raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
            machine.launch_graph(self.captured)
            for compute_again in self.captured.again:
                compute_again()

        def reset(self) -> None:
            self.captured = None

        def pool(self) -> tuple[int, int]:
            return (0, 1)

    return {
        "_CudaStreamBase": SimulatedStream,
        "_CudaEventBase": SimulatedEvent,
        "_CUDAGraph": SimulatedGraph,
    }


def find_raw(stream: Stream) -> int:
    """The address of a stream; the default one has none."""
    return 0 if stream.number == 0 else 0x5000 + 0x100 * stream.device + stream.number


def make_functions(machine: Machine, driver: Driver) -> dict[str, Any]:
    """What stands in the place of functions of `torch._C`, by their names."""

    def describe_stream(stream: Stream) -> tuple[int, int, int]:
        return stream.number, stream.device, CUDA_TYPE

    def set_device(index: int) -> None:
        if not 0 <= index < len(machine.devices):
            raise machine.make_error("invalid device ordinal")
        machine.here.device = index

    def exchange_device(index: int) -> int:
        before = machine.here.device
        if index >= 0:
            set_device(index)
        return before

    def count_devices() -> int:
        if not driver.is_lost():
            driver.start()
        return len(machine.devices)

    def set_stream(stream_id: int, device_index: int, **_others: Any) -> None:
        machine.use_stream(machine.devices[device_index].streams[stream_id])

    def is_capturing() -> bool:
        machine.check_device(machine.here.device)  # may return errors of earlier launches
        return machine.find_stream().capture is not None

    def read_stats(index: int) -> dict[str, Any]:
        memory = machine.devices[index].memory

        def level(current: int, peak: int) -> dict[str, dict[str, int]]:
            one = {"current": current, "peak": peak, "allocated": peak, "freed": peak - current}
            return {"all": one, "small_pool": dict.fromkeys(one, 0), "large_pool": one}

        return {
            "allocated_bytes": level(memory.allocated, memory.peak),
            "active_bytes": level(memory.allocated, memory.peak),
            "requested_bytes": level(memory.allocated, memory.peak),
            "reserved_bytes": level(memory.reserved, memory.peak_reserved),
            "inactive_split_bytes": level(memory.reserved - memory.allocated, 0),
            "num_alloc_retries": memory.failures,
            "num_ooms": memory.failures,
            "num_device_alloc": memory.calls,
        }

    def empty_cache() -> None:
        for device in machine.devices:
            device.memory.empty_cache()

    def forget_peaks(index: int) -> None:
        machine.devices[index].memory.forget_peaks()

    def find_accelerator_stream(index: int) -> Any:
        number, device, _ = describe_stream(machine.find_stream(index))
        return torch.cuda.Stream(stream_id=number, device_index=device, device_type=CUDA_TYPE)

    return {
        "_cuda_init": driver.init,
        "_cuda_getDeviceCount": count_devices,
        "_cuda_isInBadFork": driver.is_lost,
        "_cuda_hasPrimaryContext": lambda _index: driver.started_by is not None,
        "_cuda_getDevice": lambda: machine.here.device,
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": exchange_device,
        "_cuda_maybeExchangeDevice": exchange_device,
        "_cuda_getCurrentStream": lambda index: describe_stream(machine.find_stream(index)),
        "_cuda_getDefaultStream": lambda index: (0, index, CUDA_TYPE),
        "_cuda_getCurrentRawStream": lambda index: find_raw(machine.find_stream(index)),
        "_cuda_setStream": set_stream,
        "_cuda_synchronize": lambda: machine.synchronize_device(machine.here.device),
        "_cuda_isCurrentStreamCapturing": is_capturing,
        "_graph_pool_handle": lambda: (0, 1),
        "_cuda_sleep": lambda cycles: machine.launch("spin_kernel", cycles),
        "_cuda_memoryStats": read_stats,
        "_cuda_memorySnapshot": lambda *_: {"segments": [_describe_segment(one) for one in machine.devices]},
        "_cuda_resetPeakMemoryStats": forget_peaks,
        "_cuda_resetAccumulatedMemoryStats": lambda _index: None,
        "_cuda_emptyCache": empty_cache,
        "_host_emptyCache": lambda: None,
        "_cuda_ipc_collect": lambda: None,
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: machine.here.device,
        "_accelerator_setDeviceIndex": set_device,
        "_accelerator_exchangeDevice": exchange_device,
        "_accelerator_maybeExchangeDevice": exchange_device,
        "_accelerator_getStream": find_accelerator_stream,
        "_accelerator_setStream": lambda stream: machine.use_stream(stream.queue),
        "_accelerator_synchronizeDevice": machine.synchronize_device,
        "_accelerator_isAllocatorInitialized": lambda: driver.started_by is not None,
        "_accelerator_getDeviceStats": read_stats,
        "_accelerator_emptyCache": empty_cache,
        "_accelerator_resetPeakStats": forget_peaks,
    }


def _describe_segment(device: Device) -> dict[str, Any]:
    """One segment with all blocks, and what is free in it."""
    memory = device.memory
    blocks = [
        {"address": address, "size": size, "requested_size": size, "state": "active_allocated"}
        for address, size in memory.blocks.values()
    ]
    rest = memory.reserved - memory.allocated
    if rest:
        blocks.append({"address": -device.index, "size": rest, "requested_size": 0, "state": "inactive"})
    size = max(memory.reserved, SEGMENT)
    return {
        "device": device.index,
        "total_size": size,
        "segment_type": "large",
        "stream": 0,
        "blocks": blocks,
    }


def _load_again(name: str) -> ModuleType:
    """A module of torch.cuda's once more, on top of what `torch._C` has now."""
    plain = sys.modules[f"torch.cuda.{name}"]
    spec = importlib.util.spec_from_file_location(f"torch.cuda._simulated_{name}", str(plain.__file__))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install_surface(machine: Machine, driver: Driver, put: Put) -> None:
    """Put the simulated side below torch.cuda."""
    cuda: Any = torch.cuda
    machine.error_kind = getattr(torch, "AcceleratorError", RuntimeError)
    functions, bases = make_functions(machine, driver), make_bases(machine)
    for name, stand_in in (functions | bases).items():
        if hasattr(torch._C, name):
            put(torch._C, name, stand_in)
    runtime = SimpleNamespace(
        cudaMemGetInfo=lambda index: (
            machine.devices[index].memory.free,
            machine.devices[index].memory.capacity,
        ),
        cudaError=SimpleNamespace(success=0),
        cudaGetErrorString=str,
        cudaProfilerStart=lambda: 0,
        cudaProfilerStop=lambda: 0,
    )
    for name, value in {
        "_initialized": False,
        "_queued_calls": [],
        "_cached_device_count": None,
        "_is_in_bad_fork": driver.is_lost,
        "_exchange_device": functions["_cuda_exchangeDevice"],
        "_maybe_exchange_device": functions["_cuda_maybeExchangeDevice"],
        "_device_count_nvml": lambda: len(driver.list_visible()),  # NVML answers without the driver
        "_cudart": runtime,
        "_get_device_properties": None,
        "default_generators": (),
    }.items():
        put(cuda, name, value)
    if hasattr(cuda, "_lazy_seed_tracker"):
        put(cuda, "_lazy_seed_tracker", type(cuda._lazy_seed_tracker)())
    for part, names in (
        ("streams", ("Stream", "ExternalStream", "Event")),
        ("graphs", ("CUDAGraph", "graph", "is_current_stream_capturing", "make_graphed_callables")),
    ):
        again = _load_again(part)
        for name in names:
            put(getattr(cuda, part), name, getattr(again, name))
            put(cuda, name, getattr(again, name))
    put(torch, "Event", _make_any_event(bases["_CudaEventBase"]))


def _make_any_event(base: type) -> type:
    """`torch.Event`, which says of which device it is."""

    class AnyEvent(base):  # type: ignore[misc, valid-type]
        def __new__(cls, device: Any = None, *, enable_timing: bool = False, **_others: Any) -> Any:
            return super().__new__(cls, enable_timing)

    return AnyEvent


def install_autocast(put: Put) -> None:
    """Mixed precision of the device is done by the CPU's: the same operators in the same precision."""
    for name in ("set_autocast_enabled", "set_autocast_dtype"):
        plain = getattr(torch, name, None)
        if plain is None:
            continue

        def set_both(*args: Any, plain: Any = plain) -> None:
            plain(*args)
            if args[0] == "cuda":
                plain("cpu", *args[1:])

        put(torch, name, set_both)

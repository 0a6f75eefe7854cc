"""Telemetry: twice a second, what the process, its loader workers, the system and the GPUs do.

`cpu_percent` counts one busy core as 100, except for `system`, where 100 is all cores. `read_bytes`
and `write_bytes` are running totals. Workers are all child processes; pages they share with the
process count in the `rss_bytes` of each.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, TypeVar

import psutil

from detscope.machine.devices import open_nvml


class Reading(NamedTuple):
    """One value of one source; the sampler adds the time."""

    source: str
    metric: str
    value: float
    unit: str


class _NvmlMetric(NamedTuple):
    name: str
    unit: str
    read: Callable[[ModuleType, Any], float]


def _read_temperature(nvml: ModuleType, handle: Any) -> float:
    try:
        return float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    except nvml.NVMLError_FunctionNotFound:  # withdrawn by newer drivers for the versioned call
        return float(nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU))


def _read_throttling(nvml: ModuleType, handle: Any) -> float:
    try:
        return float(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError_FunctionNotFound:  # the call's name before driver 535
        return float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


_METRICS = (
    _NvmlMetric("utilization_percent", "%", lambda n, h: float(n.nvmlDeviceGetUtilizationRates(h).gpu)),
    _NvmlMetric(
        "memory_utilization_percent", "%", lambda n, h: float(n.nvmlDeviceGetUtilizationRates(h).memory)
    ),
    _NvmlMetric("memory_used_bytes", "bytes", lambda n, h: float(n.nvmlDeviceGetMemoryInfo(h).used)),
    _NvmlMetric("sm_clock_mhz", "MHz", lambda n, h: float(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM))),
    _NvmlMetric("memory_clock_mhz", "MHz", lambda n, h: float(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM))),
    _NvmlMetric("power_watts", "W", lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1000.0),
    _NvmlMetric("temperature_celsius", "°C", _read_temperature),
    _NvmlMetric("throttle_reasons", "bits", _read_throttling),
    _NvmlMetric("energy_joules", "J", lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h) / 1000.0),
)


_CHILDREN_EVERY_NS = 2_000_000_000  # listing children reads every process of the machine
_MAX_ROWS = 500_000  # rows nobody drains must not eat the memory that is being measured

T = TypeVar("T")


class Sample(NamedTuple):
    """One row of `telemetry.parquet`; `time_ns` is `time.perf_counter_ns`."""

    time_ns: int
    source: str
    metric: str
    value: float
    unit: str


class Source:
    """Something to sample. What it cannot read it puts into `notes`, once."""

    name = ""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}

    def read_values(self) -> list[Reading]:
        """The values of now."""
        return []

    def close(self) -> None:
        """Release what it holds."""


class ProcessSource(Source):
    """CPU, memory, threads and file traffic of one process."""

    def __init__(self, process: psutil.Process, name: str) -> None:
        super().__init__()
        self.name = name
        self._process = process
        self._primed = False
        self._counts_files = True

    def read_values(self) -> list[Reading]:
        """CPU since the previous reading (so not in the first), the rest as of now."""
        readings = []
        with self._process.oneshot():
            percent = self._process.cpu_percent(None)
            if self._primed:
                readings.append(Reading(self.name, "cpu_percent", percent, "%"))
            self._primed = True
            rss = self._process.memory_info().rss
            readings.append(Reading(self.name, "rss_bytes", float(rss), "bytes"))
            readings.append(Reading(self.name, "threads", float(self._process.num_threads()), "count"))
        return readings + self._read_file_traffic()

    def _read_file_traffic(self) -> list[Reading]:
        if not self._counts_files:
            return []
        try:
            traffic = self._process.io_counters()
        except (psutil.AccessDenied, AttributeError, OSError) as error:
            self._counts_files = False
            self.notes[f"{self.name} read_bytes, write_bytes"] = f"cannot be read here: {error}"
            return []
        return [
            Reading(self.name, "read_bytes", float(traffic.read_bytes), "bytes"),
            Reading(self.name, "write_bytes", float(traffic.write_bytes), "bytes"),
        ]


class WorkersSource(Source):
    """CPU, memory and threads of each child process, as `worker:<pid>`."""

    name = "worker"

    def __init__(self, parent: psutil.Process) -> None:
        super().__init__()
        self._parent = parent
        self._workers: dict[int, ProcessSource] = {}
        self._listed_ns: int | None = None

    def read_values(self) -> list[Reading]:
        """Readings of the children that live; one that ended is forgotten."""
        self._list_workers()
        readings: list[Reading] = []
        for pid, worker in list(self._workers.items()):
            try:
                readings += worker.read_values()
            except psutil.NoSuchProcess:
                del self._workers[pid]
            except psutil.Error as error:
                self.notes[worker.name] = f"no more readings: {error}"
                del self._workers[pid]
            self.notes.update(worker.notes)
        return readings

    def _list_workers(self) -> None:
        now_ns = time.perf_counter_ns()
        if self._listed_ns is not None and now_ns - self._listed_ns < _CHILDREN_EVERY_NS:
            return
        self._listed_ns = now_ns
        living = self._parent.children(recursive=True)
        known = self._workers
        self._workers = {
            child.pid: known.get(child.pid) or ProcessSource(child, f"worker:{child.pid}")
            for child in living
            if f"worker:{child.pid}" not in self.notes
        }


class SystemSource(Source):
    """Load, memory and processor use of the whole machine; each core as `core:<n>`."""

    name = "system"

    def __init__(self) -> None:
        super().__init__()
        self._primed = False

    def read_values(self) -> list[Reading]:
        """Processor use since the previous reading (so not in the first), the rest as of now."""
        memory = psutil.virtual_memory()
        readings = [
            Reading("system", "load_1min", psutil.getloadavg()[0], "processes"),
            Reading("system", "memory_available_bytes", float(memory.available), "bytes"),
        ]
        cores = psutil.cpu_percent(None, percpu=True)
        if self._primed and cores:
            readings.append(Reading("system", "cpu_percent", sum(cores) / len(cores), "%"))
            readings += [
                Reading(f"core:{core}", "cpu_percent", percent, "%") for core, percent in enumerate(cores)
            ]
        self._primed = True
        return readings


class NvmlSampler(Source):
    """Reads every device on each call; without a device it reads nothing and `notes` says why.

    `gpu:N` counts as the driver does, which CUDA_VISIBLE_DEVICES may renumber for CUDA. Energy is
    the device's running total. What a device does not support is noted once and not asked again.
    """

    name = "gpu"

    def __init__(self) -> None:
        super().__init__()
        self._metrics: dict[int, list[_NvmlMetric]] = {}
        self._handles: dict[int, Any] = {}
        self._nvml, reason = open_nvml()
        if self._nvml is None:
            self.notes["gpu"] = reason
            return
        try:
            self._find_devices(self._nvml)
        except self._nvml.NVMLError as error:
            self.notes["gpu"] = f"NVML: {error}"

    def _find_devices(self, nvml: ModuleType) -> None:
        count = nvml.nvmlDeviceGetCount()
        if count == 0:
            self.notes["gpu"] = "the driver reports no device"
        for index in range(count):
            try:
                self._handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
                self._metrics[index] = list(_METRICS)
            except nvml.NVMLError as error:
                self.notes[f"gpu:{index}"] = f"NVML: {error}"

    def read_values(self) -> list[Reading]:
        """One reading per device and metric."""
        readings: list[Reading] = []
        if self._nvml is not None:
            for index in list(self._handles):
                readings += self._read_device(self._nvml, index)
        return readings

    def _read_device(self, nvml: ModuleType, index: int) -> list[Reading]:
        readings = []
        for metric in list(self._metrics[index]):
            try:
                value = metric.read(nvml, self._handles[index])
            except nvml.NVMLError as error:
                if _is_gone(nvml, error):
                    self.notes[f"gpu:{index}"] = f"no more readings: {error}"
                    del self._handles[index]
                    break
                self.notes[f"gpu:{index} {metric.name}"] = str(error)
                self._metrics[index].remove(metric)
                continue
            readings.append(Reading(f"gpu:{index}", metric.name, value, metric.unit))
        return readings

    def close(self) -> None:
        """Give the driver's session back; reading afterwards gives nothing."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None


def _is_gone(nvml: ModuleType, error: Exception) -> bool:
    """True for errors after which the device answers nothing any more."""
    return getattr(error, "value", None) in {
        nvml.NVML_ERROR_GPU_IS_LOST,
        nvml.NVML_ERROR_RESET_REQUIRED,
        nvml.NVML_ERROR_UNINITIALIZED,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
    }


def default_sources() -> list[Source]:
    """This process, its children, the machine, and its NVIDIA devices."""
    here = psutil.Process()
    return [ProcessSource(here, "process"), WorkersSource(here), SystemSource(), NvmlSampler()]


def until_next_sample_s(now_s: float, period_s: float, shortest_s: float) -> float:
    """Time to the next multiple of the period on the host's clock that is not too near.

    Processes of one host sample at the same moments: ranks are held up together, not one after the other.
    """
    return math.ceil((now_s + shortest_s) / period_s) * period_s - now_s


class Telemetry:
    """A thread that samples `hz` times a second between `start` and `stop`; 0 switches it off."""

    def __init__(self, hz: float = 2.0, sources: Sequence[Source] | None = None) -> None:
        self._period_s = 1.0 / hz if hz > 0 else None
        self._given = sources
        self._sources: list[Source] = []
        self._failed: dict[str, str] = {}
        self._rows: list[Sample] = []
        self._dropped = 0
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to sample; sources are opened here, so that their notes are there at once."""
        if self._period_s is None or self._thread is not None:
            return
        self._sources = list(default_sources() if self._given is None else self._given)
        self._end.clear()
        self._thread = threading.Thread(target=self._run_thread, name="detscope-telemetry", daemon=True)
        self._thread.start()

    def hold_samples(self, quiet: bool) -> None:
        """A step begins that nothing may disturb, or one that may be; samples wait one period at most."""
        if quiet:
            self._free.clear()
        else:
            self._free.set()

    def stop(self) -> None:
        """Take a last sample and end the thread; what was sampled can still be drained."""
        if self._thread is None:
            return
        self._end.set()
        self._free.set()
        self._thread.join()
        self._thread = None

    def __enter__(self) -> Telemetry:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def drain_samples(self) -> list[Sample]:
        """What was sampled since the last call, in order of time; may be called from any thread."""
        with self._lock:
            rows, self._rows = self._rows, []
        return rows

    @property
    def notes(self) -> dict[str, str]:
        """What could not be read, and why."""
        with self._lock:
            notes = {key: note for source in list(self._sources) for key, note in dict(source.notes).items()}
            notes |= self._failed
            if self._dropped:
                notes["telemetry"] = f"{self._dropped} rows dropped: nobody drained them"
        return notes

    def _run_thread(self) -> None:
        """Everything happens in this thread: psutil keeps its earlier counters per thread."""
        assert self._period_s is not None
        shortest_s = self._period_s / 4  # shorter intervals are mostly noise
        while True:
            began = time.perf_counter()
            self._take_sample()
            if self._end.wait(until_next_sample_s(time.perf_counter(), self._period_s, shortest_s)):
                break
            self._free.wait(self._period_s)
        if time.perf_counter() - began > shortest_s:
            self._take_sample()
        for source in self._sources:
            self._call_guarded(source, source.close)

    def _take_sample(self) -> None:
        began_ns = time.perf_counter_ns()
        rows = []
        for source in list(self._sources):
            if source.name in self._failed:
                continue
            readings = self._call_guarded(source, source.read_values)
            rows += [Sample(began_ns, *reading) for reading in readings or ()]
        with self._lock:
            room = max(0, _MAX_ROWS - len(self._rows))
            self._rows += rows[:room]
            self._dropped += len(rows) - len(rows[:room])

    def _call_guarded(self, source: Source, action: Callable[[], T]) -> T | None:
        """A source that fails in whatever way is noted and left out; the measurement goes on."""
        try:
            return action()
        except Exception as error:
            with self._lock:
                self._failed[source.name] = f"no more readings: {type(error).__name__}: {error}"
            return None

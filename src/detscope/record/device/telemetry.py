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
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import psutil

from detscope.machine.devices import open_nvml


class Reading(NamedTuple):
    """One value of one source; the sampler adds the time."""

    source: str
    metric: str
    value: float
    unit: str


# name, unit, how it is read
_NvmlMetric = tuple[str, str, Callable[[ModuleType, Any], float]]


def _call_either(nvml: ModuleType, names: tuple[str, str], *args: Any) -> float:
    """Drivers differ in which of two names of a call they have."""
    try:
        return float(getattr(nvml, names[0])(*args))
    except nvml.NVMLError_FunctionNotFound:
        return float(getattr(nvml, names[1])(*args))


_TEMPERATURE = ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV")  # newer drivers: the versioned call
# the second was its name before driver 535
_THROTTLING = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_METRICS: tuple[_NvmlMetric, ...] = (
    ("utilization_percent", "%", lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu),
    ("memory_utilization_percent", "%", lambda n, h: n.nvmlDeviceGetUtilizationRates(h).memory),
    ("memory_used_bytes", "bytes", lambda n, h: n.nvmlDeviceGetMemoryInfo(h).used),
    ("sm_clock_mhz", "MHz", lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),
    ("memory_clock_mhz", "MHz", lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)),
    ("power_watts", "W", lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1000.0),
    ("temperature_celsius", "°C", lambda n, h: _call_either(n, _TEMPERATURE, h, n.NVML_TEMPERATURE_GPU)),
    ("throttle_reasons", "bits", lambda n, h: _call_either(n, _THROTTLING, h)),
    ("energy_joules", "J", lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h) / 1000.0),
)


# errors after which a device answers nothing any more
_GONE = ("GPU_IS_LOST", "RESET_REQUIRED", "UNINITIALIZED", "DRIVER_NOT_LOADED")
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
        values: list[tuple[str, float, str]] = []
        with self._process.oneshot():
            percent = self._process.cpu_percent(None)
            if self._primed:
                values.append(("cpu_percent", percent, "%"))
            self._primed = True
            values.append(("rss_bytes", self._process.memory_info().rss, "bytes"))
            values.append(("threads", self._process.num_threads(), "count"))
        if self._counts_files:
            try:
                traffic = self._process.io_counters()
                values.append(("read_bytes", traffic.read_bytes, "bytes"))
                values.append(("write_bytes", traffic.write_bytes, "bytes"))
            except (psutil.AccessDenied, AttributeError, OSError) as error:
                self._counts_files = False
                self.notes[f"{self.name} read_bytes, write_bytes"] = f"cannot be read here: {error}"
        return [Reading(self.name, metric, float(value), unit) for metric, value, unit in values]


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
        now_ns = time.perf_counter_ns()
        if self._listed_ns is None or now_ns - self._listed_ns >= _CHILDREN_EVERY_NS:
            self._listed_ns, known = now_ns, self._workers
            self._workers = {
                child.pid: known.get(child.pid) or ProcessSource(child, f"worker:{child.pid}")
                for child in self._parent.children(recursive=True)
                if f"worker:{child.pid}" not in self.notes
            }
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
        self._devices: dict[int, tuple[Any, list[_NvmlMetric]]] = {}  # handles, and what they support
        self._nvml, reason = open_nvml()
        if self._nvml is None:
            self.notes["gpu"] = reason
            return
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            self.notes["gpu"] = f"NVML: {error}"
            return
        if count == 0:
            self.notes["gpu"] = "the driver reports no device"
        for index in range(count):
            try:
                self._devices[index] = self._nvml.nvmlDeviceGetHandleByIndex(index), list(_METRICS)
            except self._nvml.NVMLError as error:
                self.notes[f"gpu:{index}"] = f"NVML: {error}"

    def read_values(self) -> list[Reading]:
        """One reading per device and metric."""
        nvml = self._nvml
        readings: list[Reading] = []
        if nvml is None:
            return readings
        for index, (handle, metrics) in list(self._devices.items()):
            for metric in list(metrics):
                name, unit, read = metric
                try:
                    value = float(read(nvml, handle))
                except nvml.NVMLError as error:
                    gone = {getattr(nvml, f"NVML_ERROR_{fault}") for fault in _GONE}
                    if getattr(error, "value", None) in gone:
                        self.notes[f"gpu:{index}"] = f"no more readings: {error}"
                        del self._devices[index]
                        break
                    self.notes[f"gpu:{index} {name}"] = str(error)
                    metrics.remove(metric)
                else:
                    readings.append(Reading(f"gpu:{index}", name, value, unit))
        return readings

    def close(self) -> None:
        """Give the driver's session back; reading afterwards gives nothing."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None


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

    def __exit__(self, *error: object) -> None:
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
            if source.name not in self._failed:
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

"""Telemetry: twice a second, what the process, its loader workers, the system and its own device do.

`cpu_percent` counts one busy core as 100, except for `system`, where 100 is all cores. `read_bytes`
and `write_bytes` are running totals. Workers are all child processes; pages they share with the
process count in the `rss_bytes` of each.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import psutil

from detscope.machine.meters import NOT_STARTED, DeviceMeter, list_used_devices, open_meter
from detscope.machine.processes import ProcessCounts, list_descendants, read_counts
from detscope.record.foreign import UnlistedThread


class Reading(NamedTuple):
    """One value of one source; the sampler adds the time."""

    source: str
    metric: str
    value: float
    unit: str


_CHILDREN_EVERY_NS = 2_000_000_000  # listing children may read every process of the machine
_MAX_ROWS = 500_000  # rows nobody drains must not eat the memory that is being measured

T = TypeVar("T")


class TelemetryRow(NamedTuple):
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
        self._before: tuple[float, ProcessCounts] | None = None
        self._counts_files = True

    def read_values(self) -> list[Reading]:
        """CPU since the previous reading (so not in the first), the rest as of now."""
        values: list[tuple[str, float, str]] = []
        now_s, counts = time.perf_counter(), read_counts(self._process)
        if self._before is not None:
            past_s, past = self._before
            values.append(("cpu_percent", 100 * (counts.cpu_s - past.cpu_s) / (now_s - past_s), "%"))
        self._before = now_s, counts
        values.append(("rss_bytes", counts.resident_bytes, "bytes"))
        values.append(("threads", counts.threads, "count"))
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
            self._workers = {}
            for pid in list_descendants(self._parent):
                with suppress(psutil.NoSuchProcess):
                    if f"worker:{pid}" not in self.notes:
                        self._workers[pid] = known.get(pid) or _watch_worker(pid)
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


def _watch_worker(pid: int) -> ProcessSource:
    return ProcessSource(psutil.Process(pid), f"worker:{pid}")


class SystemSource(Source):
    """Load, memory and processor use of the whole machine; each core as `core:<n>`."""

    name = "system"

    def __init__(self) -> None:
        super().__init__()
        self._before: list[tuple[float, float]] = []  # of each core, seconds that it was busy and in all

    def read_values(self) -> list[Reading]:
        """Processor use since the previous reading (so not in the first), the rest as of now."""
        memory = psutil.virtual_memory()
        readings = [
            Reading("system", "load_1min", psutil.getloadavg()[0], "processes"),
            Reading("system", "memory_available_bytes", float(memory.available), "bytes"),
        ]
        # `psutil.cpu_percent` would ask for the thread by name
        now = [_count_busy(times) for times in psutil.cpu_times(percpu=True)]
        spent = [(b - b0, t - t0) for (b, t), (b0, t0) in zip(now, self._before, strict=False)]
        cores = [min(100.0, max(0.0, 100 * busy / whole)) if whole > 0 else 0.0 for busy, whole in spent]
        if cores:
            readings.append(Reading("system", "cpu_percent", sum(cores) / len(cores), "%"))
            readings += [
                Reading(f"core:{core}", "cpu_percent", percent, "%") for core, percent in enumerate(cores)
            ]
        self._before = now
        return readings


def _count_busy(times: Any) -> tuple[float, float]:
    """Seconds that a core was busy, and in all; a guest's are part of its user's."""
    whole = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return whole - times.idle - getattr(times, "iowait", 0.0), whole


class DeviceSampler(Source):
    """Reads the devices that this process uses, under torch's names; where it cannot, `notes` says why.

    Energy is a device's running total. A device is looked for once the program has started its driver.
    """

    name = "gpu"

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self._wanted = device  # None: wherever this process has memory
        self._meters: dict[str, DeviceMeter] = {}
        self._looking = True
        self._open_meters()

    def read_values(self) -> list[Reading]:
        """One reading per device and metric."""
        if self._looking:
            self._open_meters()
        readings = []
        for name, meter in self._meters.items():
            readings += [Reading(name, *value) for value in meter.read_values()]
            self.notes |= {f"{name} {metric}".strip(): why for metric, why in meter.notes.items()}
        return readings

    def _open_meters(self) -> None:
        wanted = list_used_devices() if self._wanted is None else [self._wanted]
        for device in wanted:
            meter, reason = (None, "") if device == "cpu" else open_meter(device)
            if reason == NOT_STARTED:
                return
            self._looking = False
            if meter is not None:
                self._meters[device] = meter
            elif reason:
                self.notes[device] = reason

    def close(self) -> None:
        """Give the driver's sessions back; reading afterwards gives nothing."""
        self._looking = False
        for meter in self._meters.values():
            meter.close()


def default_sources(device: str | None = None) -> list[Source]:
    """This process, its children, the machine, and the device it computes on; None: those it uses."""
    here = psutil.Process()
    return [ProcessSource(here, "process"), WorkersSource(here), SystemSource(), DeviceSampler(device)]


def until_next_sample_s(now_s: float, period_s: float, shortest_s: float) -> float:
    """Time to the next multiple of the period on the host's clock that is not too near.

    Processes of one host sample at the same moments: ranks are held up together, not one after the other.
    """
    return math.ceil((now_s + shortest_s) / period_s) * period_s - now_s


class Telemetry:
    """A thread that samples `hz` times a second between `start` and `stop`; 0 switches it off."""

    def __init__(
        self, hz: float = 2.0, sources: Sequence[Source] | None = None, device: str | None = None
    ) -> None:
        self._period_s = 1.0 / hz if hz > 0 else None
        self._device = device
        self._given = sources
        self._sources: list[Source] = []
        self._failed: dict[str, str] = {}
        self._rows: list[TelemetryRow] = []
        self._dropped = 0
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._thread: UnlistedThread | None = None

    def start(self) -> None:
        """Begin to sample; sources are opened here, so that their notes are there at once."""
        if self._period_s is None or self._thread is not None:
            return
        self._sources = list(default_sources(self._device) if self._given is None else self._given)
        self._end.clear()
        self._thread = UnlistedThread(self._run_thread)
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

    def drain_samples(self) -> list[TelemetryRow]:
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
        """Everything happens in this thread."""
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
                rows += [TelemetryRow(began_ns, *reading) for reading in readings or ()]
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

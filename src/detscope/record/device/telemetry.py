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
from types import TracebackType
from typing import NamedTuple, Protocol, TypeVar

import psutil

from detscope.record.nvml import NvmlSampler, Reading

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


class Source(Protocol):
    """Something to sample. What it cannot read it puts into `notes`, once."""

    name: str
    notes: dict[str, str]

    def read(self) -> list[Reading]:
        """The values of now."""

    def close(self) -> None:
        """Release what it holds."""


class ProcessSource:
    """CPU, memory, threads and file traffic of one process."""

    def __init__(self, process: psutil.Process, name: str) -> None:
        self.name = name
        self.notes: dict[str, str] = {}
        self._process = process
        self._primed = False
        self._counts_files = True

    def read(self) -> list[Reading]:
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
        return readings + self._file_traffic()

    def _file_traffic(self) -> list[Reading]:
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

    def close(self) -> None:
        """Nothing is held."""


class WorkersSource:
    """CPU, memory and threads of each child process, as `worker:<pid>`."""

    name = "worker"

    def __init__(self, parent: psutil.Process) -> None:
        self.notes: dict[str, str] = {}
        self._parent = parent
        self._workers: dict[int, ProcessSource] = {}
        self._listed_ns: int | None = None

    def read(self) -> list[Reading]:
        """Readings of the children that live; one that ended is forgotten."""
        self._refresh()
        readings: list[Reading] = []
        for pid, worker in list(self._workers.items()):
            try:
                readings += worker.read()
            except psutil.NoSuchProcess:
                del self._workers[pid]
            except psutil.Error as error:
                self.notes[worker.name] = f"no more readings: {error}"
                del self._workers[pid]
            self.notes.update(worker.notes)
        return readings

    def _refresh(self) -> None:
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

    def close(self) -> None:
        """Nothing is held."""


class SystemSource:
    """Load, memory and processor use of the whole machine; each core as `core:<n>`."""

    name = "system"

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        self._primed = False

    def read(self) -> list[Reading]:
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

    def close(self) -> None:
        """Nothing is held."""


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
        self._cost_ns = 0
        self._samples = 0
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
        self._thread = threading.Thread(target=self._run, name="detscope-telemetry", daemon=True)
        self._thread.start()

    def hold(self, quiet: bool) -> None:
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

    def drain(self) -> list[Sample]:
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

    @property
    def sample_cost_ms(self) -> float | None:
        """Mean time one sample took (it competes with Python code of the loop); None before any."""
        return self._cost_ns / self._samples / 1e6 if self._samples else None

    def _run(self) -> None:
        """Everything happens in this thread: psutil keeps its earlier counters per thread."""
        assert self._period_s is not None
        shortest_s = self._period_s / 4  # shorter intervals are mostly noise
        while True:
            began = time.perf_counter()
            self._sample()
            if self._end.wait(until_next_sample_s(time.perf_counter(), self._period_s, shortest_s)):
                break
            self._free.wait(self._period_s)
        if time.perf_counter() - began > shortest_s:
            self._sample()
        for source in self._sources:
            self._guarded(source, source.close)

    def _sample(self) -> None:
        began_ns = time.perf_counter_ns()
        rows = []
        for source in list(self._sources):
            if source.name in self._failed:
                continue
            readings = self._guarded(source, source.read)
            rows += [Sample(began_ns, *reading) for reading in readings or ()]
        with self._lock:
            room = max(0, _MAX_ROWS - len(self._rows))
            self._rows += rows[:room]
            self._dropped += len(rows) - len(rows[:room])
        self._cost_ns += time.perf_counter_ns() - began_ns
        self._samples += 1

    def _guarded(self, source: Source, action: Callable[[], T]) -> T | None:
        """A source that fails in whatever way is noted and left out; the measurement goes on."""
        try:
            return action()
        except Exception as error:
            with self._lock:
                self._failed[source.name] = f"no more readings: {type(error).__name__}: {error}"
            return None

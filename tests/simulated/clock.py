"""The host's clock, and how it reaches the product.

Every module of detscope's has `perf_counter_ns` under that name, or asks the module `time` for it: both are
replaced while a simulation runs, so that host times are those of the simulated host.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from time import clock_gettime_ns, perf_counter_ns, process_time_ns, pthread_getcpuclockid, sleep
from typing import Any


class HostClock:
    """Time of the host, which moves only when somebody spends it; starts at a large number."""

    def __init__(self, start_ns: int = 1_000_000_000_000_000) -> None:
        self._now_ns = start_ns
        self._slept_ns = 0
        self.when_moved: list[Callable[[], None]] = []

    def now(self) -> int:
        return self._now_ns

    def processor(self) -> int:
        """Processor time: the host computes, or spins while it waits for the device; asleep it does not."""
        return self.now() - self._slept_ns

    def spend(self, duration_ns: int) -> None:
        """The host works."""
        self._now_ns += duration_ns
        for tell in self.when_moved:
            tell()

    def sleep(self, duration_ns: int) -> None:
        self._slept_ns += duration_ns
        self.spend(duration_ns)

    def wait_until(self, moment_ns: int) -> None:
        """The host waits for the device."""
        if moment_ns > self.now():
            self.spend(moment_ns - self.now())


class SleepingClock(HostClock):
    """The system's clock: waiting really sleeps, and working takes what it takes."""

    def now(self) -> int:
        return perf_counter_ns()

    def spend(self, duration_ns: int) -> None:
        for tell in self.when_moved:
            tell()

    def sleep(self, duration_ns: int) -> None:
        self._slept_ns += duration_ns
        sleep(duration_ns / 1e9)
        self.spend(0)

    def wait_until(self, moment_ns: int) -> None:
        while moment_ns > self.now():
            sleep((moment_ns - self.now()) / 1e9)
        self.spend(0)


class WorkingClock(HostClock):
    """What the thread that made it computes, and sleeps: time that others take from it passes nobody."""

    def __init__(self, start_ns: int = 1_000_000_000_000_000) -> None:
        super().__init__(start_ns)
        self._thread = pthread_getcpuclockid(get_ident())

    def now(self) -> int:
        return super().now() + clock_gettime_ns(self._thread)


def _find_holders(name: str, value: Any) -> Iterator[Any]:
    """Modules of the product that hold something under its name."""
    for path, module in list(sys.modules.items()):
        if path.partition(".")[0] == "detscope" and vars(module).get(name) is value:
            yield module


@contextmanager
def product_reads(clock: HostClock) -> Iterator[None]:
    """All of detscope, what is imported meanwhile too, has this clock."""
    if isinstance(clock, SleepingClock):
        yield
        return
    plain: dict[str, Any] = {
        "perf_counter_ns": perf_counter_ns,
        "process_time_ns": process_time_ns,
        "sleep": sleep,
    }
    stand_ins: dict[str, Callable[..., Any]] = {
        "perf_counter_ns": clock.now,
        "process_time_ns": clock.processor,
        "sleep": lambda seconds: clock.sleep(round(seconds * 1e9)),
    }
    for name, stand_in in stand_ins.items():
        for module in _find_holders(name, plain[name]):
            setattr(module, name, stand_in)
        if name != "sleep":  # other threads of the test's own may sleep
            setattr(time, name, stand_in)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            for module in _find_holders(name, stand_in):
                setattr(module, name, plain[name])
            setattr(time, name, plain[name])

"""Clocks around single calls: the processor's own, or events on a CUDA stream."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Clock(Protocol):
    """Adds up what passes between `start` and `stop`."""

    def reset(self) -> None:
        """Forget what was added up."""

    def start(self) -> None:
        """A call begins."""

    def stop(self) -> None:
        """It has returned."""

    def total_ms(self) -> float:
        """All calls since `reset`, in ms."""


class CpuClock:
    """Calls on a processor have done their work when they return."""

    def __init__(self) -> None:
        self._total_ns = self._began_ns = 0

    def reset(self) -> None:
        """Forget what was added up."""
        self._total_ns = 0

    def start(self) -> None:
        """A call begins."""
        self._began_ns = time.perf_counter_ns()

    def stop(self) -> None:
        """It has returned."""
        self._total_ns += time.perf_counter_ns() - self._began_ns

    def total_ms(self) -> float:
        """All calls since `reset`, in ms."""
        return self._total_ns / 1e6


class CudaClock:
    """Events on the current stream: a call's kernels, and the wait for the host where that is slower."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch, self._device = torch, device
        self._pairs: list[tuple[Any, Any]] = []

    def reset(self) -> None:
        """Forget what was added up, and begin with an idle device."""
        self._torch.cuda.synchronize(self._device)
        self._pairs = []

    def start(self) -> None:
        """A call begins."""
        pair = tuple(self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        pair[0].record(self._torch.cuda.current_stream(self._device))
        self._pairs.append((pair[0], pair[1]))

    def stop(self) -> None:
        """Its kernels are queued; the second event comes after them."""
        self._pairs[-1][1].record(self._torch.cuda.current_stream(self._device))

    def total_ms(self) -> float:
        """All calls since `reset`, in ms."""
        self._torch.cuda.synchronize(self._device)
        return float(sum(first.elapsed_time(last) for first, last in self._pairs))


def clock_for(device: str) -> Clock:
    """The clock of a device: cpu, cuda or cuda:1."""
    return CudaClock(device) if device.startswith("cuda") else CpuClock()

"""Device time by CUDA events, taken from a pool and read only when the device has passed them."""

from __future__ import annotations

from typing import Any

from detscope.record.steps.events import DeviceClock


class CudaClock:
    """Marks in the current CUDA stream; never synchronises inside a step."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)
        self._pool: list[Any] = []

    def record(self) -> Any:
        """Queue a timing event on the current stream."""
        event = self._pool.pop() if self._pool else self._torch.cuda.Event(enable_timing=True)
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def ready(self, handle: Any) -> bool:
        """Whether the device has passed the event."""
        return bool(handle.query())

    def elapsed_ns(self, first: Any, last: Any) -> int:
        """Device time between two events."""
        return int(first.elapsed_time(last) * 1e6)

    def wait(self) -> None:
        """Wait for everything queued on the device."""
        self._torch.cuda.synchronize(self._device)

    def recycle(self, handles: list[Any]) -> None:
        """Give events back for reuse."""
        self._pool.extend(handles)


def device_clock_for(device: str) -> DeviceClock | None:
    """The clock of a device; None on a CPU, where host time is device time."""
    return CudaClock(device) if device.startswith("cuda") else None

"""Device time by CUDA events, taken from a pool and read only when the device has passed them."""

from __future__ import annotations

from typing import Any


class CudaClock:
    """Marks in the current CUDA stream; never synchronises inside a step."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)
        self._pool: list[Any] = []

    def record(self) -> Any:
        """Put a mark into the queue of the current stream."""
        event = self._pool.pop() if self._pool else self._torch.cuda.Event(enable_timing=True)
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def has_passed(self, mark: Any) -> bool:
        """Whether the device has passed a mark."""
        return bool(mark.query())

    def elapsed_ns(self, first: Any, last: Any) -> int:
        """Device time between two marks that it has passed."""
        return int(first.elapsed_time(last) * 1e6)

    def wait_for_device(self) -> None:
        """Wait for everything queued; only used when the recording ends."""
        self._torch.cuda.synchronize(self._device)

    def recycle_marks(self, marks: list[Any]) -> None:
        """Give marks back for reuse."""
        self._pool.extend(marks)


def device_clock_for(device: str) -> CudaClock | None:
    """The clock of a device; None on a CPU, where host time is device time."""
    return CudaClock(device) if device.startswith("cuda") else None

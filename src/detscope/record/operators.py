"""Operators of a window of steps by torch.profiler.

Read from raw events: building the profiler's Python event tree takes a hundred times as long.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RawEvent:
    """One event of the profiler, reduced to what attribution needs."""

    name: str
    start_ns: int
    duration_ns: int
    thread: int
    sequence: int  # of the forward operation that made the autograd node; -1 where there is none
    on_device: bool
    correlation: int  # host: own id; device: id of the host event that launched it
    shapes: str = ""


class OperatorWindow:
    """One profiler session over neighbouring steps."""

    def __init__(self, cuda: bool, shapes: bool = True) -> None:
        self._cuda = cuda
        self._shapes = shapes
        self._profile: Any = None

    @property
    def open(self) -> bool:
        """Whether the profiler is running."""
        return self._profile is not None

    def start(self) -> None:
        """Begin to record operators."""
        os.environ.setdefault(
            "KINETO_LOG_LEVEL", "99"
        )  # read at the first start; it writes to stderr otherwise
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._cuda else [])
        self._profile = profile(activities=activities, record_shapes=self._shapes)
        self._profile.start()

    def stop(self) -> list[RawEvent]:
        """End the session and hand over its events."""
        session, self._profile = self._profile, None
        session.stop()
        return list(read_events(session.profiler.kineto_results.events(), self._shapes))


def read_events(events: Iterable[Any], shapes: bool) -> Iterable[RawEvent]:
    """Raw profiler events as records."""
    from torch._C._autograd import DeviceType

    for event in events:
        name = event.name()
        if name == "[memory]":
            continue
        on_device = event.device_type() != DeviceType.CPU
        yield RawEvent(
            name,
            event.start_ns(),
            event.duration_ns(),
            event.start_thread_id(),
            event.sequence_nr(),
            on_device,
            event.linked_correlation_id() if on_device else event.correlation_id(),
            _shape_text(event.shapes()) if shapes and not on_device else "",
        )


def _shape_text(shapes: list[Any]) -> str:
    return " ".join("x".join(map(str, shape)) if shape else "-" for shape in shapes)

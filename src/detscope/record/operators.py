"""Operators of a window of steps by torch.profiler.

Read from raw events: building the profiler's Python event tree takes a hundred times as long.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

AUTOGRAD = "autograd::engine::evaluate_function: "
_SHAPES_FROM_NS = 10_000  # shapes of shorter operators are not worth their reading


@dataclass
class OperatorEvents:
    """Events of the profiler, one list per attribute: the fastest form Python can work on."""

    names: list[str] = field(default_factory=list)
    starts_ns: list[int] = field(default_factory=list)
    durations_ns: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)  # of autograd nodes; -1 where there is none
    on_device: list[bool] | None = None  # None: no device was recorded
    correlations: list[int] | None = None  # host: own id; device: id of the host event that launched it
    shapes: dict[int, str] = field(default_factory=dict)  # by index

    def __len__(self) -> int:
        return len(self.names)


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
        # read at the profiler's first start; without it the library writes to stderr
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._cuda else [])
        self._profile = profile(activities=activities, record_shapes=self._shapes)
        self._profile.start()

    def stop(self) -> OperatorEvents:
        """End the session and hand over its events."""
        session, self._profile = self._profile, None
        session.stop()
        with no_garbage_collection():
            return read_events(session.profiler.kineto_results.events(), self._cuda, self._shapes)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Making many small objects sets the collector off again and again, each time over all of torch."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_events(events: Sequence[Any], device: bool, shapes: bool) -> OperatorEvents:
    """Raw profiler events, attribute by attribute; device attributes only where a device was recorded."""
    names = [event.name() for event in events]
    durations_ns = [event.duration_ns() for event in events]
    result = OperatorEvents(
        names,
        [event.start_ns() for event in events],
        durations_ns,
        [event.start_thread_id() for event in events],
        [
            event.sequence_nr() if name.startswith(AUTOGRAD) else -1
            for name, event in zip(names, events, strict=True)
        ],
    )
    if device:
        from torch._C._autograd import DeviceType

        result.on_device = [event.device_type() != DeviceType.CPU for event in events]
        result.correlations = [
            event.linked_correlation_id() if is_device else event.correlation_id()
            for is_device, event in zip(result.on_device, events, strict=True)
        ]
    if shapes:
        result.shapes = {
            index: _shape_text(event.shapes())
            for index, event in enumerate(events)
            if durations_ns[index] >= _SHAPES_FROM_NS
        }
    return result


def _shape_text(shapes: list[Any]) -> str:
    return " ".join(["x".join(map(str, shape)) if shape else "-" for shape in shapes])

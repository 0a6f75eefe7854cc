"""Operators of a window of steps by torch.profiler.

Read from raw events: building the profiler's Python event tree takes a hundred times as long.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.compiler import is_compiling

from detscope.machine.limits import status_bytes
from detscope.record.foreign import Patches
from detscope.record.steps.events import SPAN_PREFIX

_functions = torch.ops.profiler

IN_COMPILED_CODE = (
    "steps end inside of a function that torch.compile has compiled and that stays open: operators and memory"
    " by blocks are not recorded"
)


def inside_compiled_code() -> bool:
    """Whether a function that torch.compile made is running, around which torch has a span of its own."""
    frame = sys._getframe(1) if "torch._dynamo" in sys.modules else None
    while frame is not None:
        if any(name.startswith(("__compiled_fn", "__resume_at")) for name in frame.f_code.co_names):
            return True
        frame = frame.f_back
    return False


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.open: list[record_function] = []


class OpenSpans:
    """Knows the spans of `torch.profiler.record_function` that are open, from `watch` on."""

    def __init__(self, *close_own: Callable[[], None]) -> None:
        self._close_own = close_own  # end spans of ours for good
        self._here = _OfThread()
        self._patches = Patches()
        self._watching = False

    def watch_spans(self) -> None:
        """Before the first session: what is open by then was heard by none."""
        if self._watching:
            return
        self._watching = True
        here, plain_enter, plain_exit = self._here, record_function.__enter__, record_function.__exit__

        @functools.wraps(plain_enter)
        def enter(span: record_function) -> Any:
            entered = plain_enter(span)  # type: ignore[no-untyped-call]
            if not is_compiling():
                here.open.append(span)
            return entered

        @functools.wraps(plain_exit)
        def leave(span: record_function, *error: Any) -> Any:
            if not is_compiling():
                here.open = [one for one in here.open if one is not span]
            return plain_exit(span, *error)

        self._patches.put(record_function, "__enter__", enter)
        self._patches.put(record_function, "__exit__", leave)

    def stop_watching(self) -> None:
        """After the last session."""
        self._patches.undo()
        self._watching = False

    @contextmanager
    def close_for_a_moment(self) -> Iterator[None]:
        """Around the end or the beginning of a session."""
        for close in self._close_own:
            close()
        spans = [one for one in self._here.open if one.run_callbacks_on_exit]
        with torch._C.DisableTorchFunctionSubclass():
            for span in reversed(spans):
                _functions._record_function_exit._RecordFunction(span.record)
        try:
            yield
        finally:
            for span in spans:
                span.record = _functions._record_function_enter_new(span.name, span.args)


AUTOGRAD = "autograd::engine::evaluate_function: "
IGNORED = "ignored"
DEVICE_KINDS = ("kernel", "copy", "set", "sync")
RUNTIMES = ("cuda", "cu", "hip")
# the profiler's words for what an event is; what stands for a span of others (gpu_user_annotation) or
# for the profiler itself (overhead) is left out
ACTIVITIES = {
    "cpu_op": "",
    "user_annotation": "",
    "python_function": "",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "set",
    "cuda_sync": "sync",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
}
_SHAPES_FROM_NS = 10_000  # shapes of shorter operators are not worth their reading
# The profiler takes 0.7 kB per operator while it records and 5 kB more when it ends. Steps of a million
# operators come of mixed precision on a processor without instructions for it.
_FULL_BYTES = 512 << 20


@dataclass
class DeviceSide:
    """What only events of a device and of its runtime have; lists run beside those of all events."""

    kinds: list[str]  # kernel, copy, set, sync; runtime; "" for everything else on the host
    launches: list[int]  # the same number for a runtime call and what it queued
    devices: list[int]
    streams: list[int]
    metadata: dict[int, str]  # by index: launch sizes and bytes, as the profiler writes them


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
    device: DeviceSide | None = None  # None: no device was recorded

    def __len__(self) -> int:
        return len(self.names)


def make_session(cuda: bool, **options: Any) -> Any:
    """A session of torch.profiler that is still to be started."""
    # read at the profiler's first start; without it the library writes to stderr
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    return profile(activities=activities, **options)


class OperatorWindow:
    """One profiler session over neighbouring steps."""

    def __init__(self, cuda: bool, shapes: bool = True, spans: OpenSpans | None = None) -> None:
        self._cuda = cuda
        self._spans = spans or OpenSpans()
        self._shapes = shapes
        self._profile: Any = None
        self._began_bytes: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the profiler is running."""
        return self._profile is not None

    @property
    def taken_bytes(self) -> int:
        """By how much the process has grown since it began; 0 where the system does not tell."""
        now = status_bytes("VmRSS")
        return 0 if now is None or self._began_bytes is None else now - self._began_bytes

    @property
    def is_full(self) -> bool:
        """Whether what is recorded takes so much memory that no further step should be."""
        return self.is_open and self.taken_bytes >= _FULL_BYTES

    def start(self) -> None:
        """Begin to record operators."""
        self._profile = make_session(self._cuda, record_shapes=self._shapes)
        with self._spans.close_for_a_moment():
            self._profile.start()
        self._began_bytes = status_bytes("VmRSS")

    def stop(self) -> OperatorEvents:
        """End the session and hand over its events."""
        session, self._profile = self._profile, None
        with self._spans.close_for_a_moment():
            session.stop()
        with no_garbage_collection():
            return read_profiler_events(session.profiler.kineto_results.events(), self._cuda, self._shapes)


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


def read_profiler_events(events: Sequence[Any], device: bool, shapes: bool) -> OperatorEvents:
    """Raw profiler events, attribute by attribute; device attributes only where a device was recorded."""
    kinds: list[str] = []
    if device:
        known = [(event, find_event_kind(event)) for event in events]
        events = [event for event, kind in known if kind != IGNORED]
        kinds = [kind for _, kind in known if kind != IGNORED]
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
        _read_device(result, events, kinds)
    if shapes:
        result.shapes = {
            index: " ".join(["x".join(map(str, shape)) if shape else "-" for shape in event.shapes()])
            for index, event in enumerate(events)
            if durations_ns[index] >= _SHAPES_FROM_NS
        }
    return result


def _read_device(result: OperatorEvents, events: Sequence[Any], kinds: list[str]) -> None:
    """Who is on the device, who launched whom, and the runtime's calls on the thread of their operator."""
    on_device = [kind in DEVICE_KINDS for kind in kinds]
    result.on_device = [kind in ("kernel", "copy", "set") for kind in kinds]
    # runtime calls count their own numbers, which may equal those of operators
    result.correlations = [
        event.linked_correlation_id() if there else -1 if kind else event.correlation_id()
        for there, kind, event in zip(on_device, kinds, events, strict=True)
    ]
    threads = {
        event.correlation_id(): thread
        for kind, event, thread in zip(kinds, events, result.threads, strict=True)
        if not kind
    }
    for index, kind in enumerate(kinds):
        if kind == "runtime":
            linked = events[index].linked_correlation_id()
            result.threads[index] = threads.get(linked, result.threads[index])
    result.device = DeviceSide(
        kinds,
        [event.correlation_id() if kind else -1 for kind, event in zip(kinds, events, strict=True)],
        [event.device_index() if there else -1 for there, event in zip(on_device, events, strict=True)],
        [event.device_resource_id() if there else -1 for there, event in zip(on_device, events, strict=True)],
        {i: event.metadata_json() for i, event in enumerate(events) if on_device[i]},
    )


def find_event_kind(event: Any) -> str:
    """What an event is, by the profiler's own word; older versions give a number, then names decide."""
    activity = event.activity_type()
    if isinstance(activity, str):
        return ACTIVITIES.get(activity, IGNORED)
    from torch._C._autograd import DeviceType

    name = event.name()
    if event.device_type() != DeviceType.CPU:
        if name.startswith(SPAN_PREFIX):
            return IGNORED
        return "copy" if name.startswith("Memcpy") else "set" if name.startswith("Memset") else "kernel"
    return "runtime" if event.linked_correlation_id() > 0 and name.startswith(RUNTIMES) else ""

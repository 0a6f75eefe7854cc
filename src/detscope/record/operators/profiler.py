"""Operators of a window of steps by torch.profiler: its sessions, and the spans that are open around them."""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter_ns
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.compiler import is_compiling

from detscope.machine.accelerator import Accelerator
from detscope.machine.limits import status_bytes
from detscope.machine.profiling import METADATA, find_setting, make_session
from detscope.record.foreign import Patches
from detscope.record.model.borders import close_span, open_span
from detscope.record.operators.events import CLOCK_PREFIX, read_profiler_events
from detscope.traces.columns import TraceEvents

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


# The profiler takes 0.7 kB per operator while it records and 5 kB more when it ends. Steps of a million
# operators come of mixed precision on a processor without instructions for it.
_FULL_BYTES = 512 << 20
_MOMENTS = 3


class OperatorWindow:
    """One profiler session over neighbouring steps."""

    def __init__(self, accelerator: Accelerator, shapes: bool = True, spans: OpenSpans | None = None) -> None:
        self._accelerator = accelerator
        self._spans = spans or OpenSpans()
        self._shapes = shapes
        self._profile: Any = None
        self._began_bytes: int | None = None

    @property
    def unknown(self) -> str | None:
        """What this torch's profiler does not tell of a device's work, and why; None: nothing is missing."""
        if self._accelerator.activity is None or find_setting(METADATA) is not None:
            return None
        missing = "launch sizes, occupancy and bytes of copies"
        return f"{missing}: the profiler of torch {torch.__version__} does not hand them over (2.10 does)"

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
        """Begin to record operators, with an empty queue: what was queued before belongs to earlier steps."""
        self._profile = make_session(self._accelerator.activity, record_shapes=self._shapes)
        if self._accelerator.activity is not None:
            self._accelerator.wait()
        with self._spans.close_for_a_moment():
            self._profile.start()
        _write_moments()
        self._began_bytes = status_bytes("VmRSS")

    def stop(self) -> TraceEvents:
        """End the session and hand over its events."""
        session, self._profile = self._profile, None
        if self._accelerator.activity is not None:
            # a session waits for the current device, which need not be the model's; one that has failed
            # leaves what it did before
            with suppress(RuntimeError):
                self._accelerator.wait()
        _write_moments()
        with self._spans.close_for_a_moment():
            session.stop()
        with no_garbage_collection():
            events = session.profiler.kineto_results.events()
            return read_profiler_events(events, self._accelerator.activity is not None, self._shapes)


def _write_moments() -> None:
    """Tell the profiler our own time, a few times: it may be held up between looking and writing."""
    for _ in range(_MOMENTS):
        close_span(open_span(f"{CLOCK_PREFIX}{perf_counter_ns()}"))


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

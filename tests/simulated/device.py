"""The simulated machine: the host's clock, devices with streams, events, captures, memory. No torch in here.

A stream is a queue that knows when it is free: work begins at `max(free_at, host's now)` and takes what it
was planted to take. So the whole history of the device is known when work is queued, and "the device has done
it" is a comparison with the host's clock. Everything is kept in `log` (work), `calls` (of the runtime) and
`spans` (operators, annotations): the truth that figures are held against.

What events, captures and errors do is taken from torch's headers (torch/include/c10/cuda/CUDAEvent.h,
CUDAException.h, CUDAFunctions.h) and from CUDA's runtime manual (stream capture, cudaEventElapsedTime).
"""

from __future__ import annotations

import os
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from simulated.clock import HostClock
from simulated.memory import Memory

SPAN_NS = 100  # of the host, to begin or end a span: no two have the same time
EVENT_RESOLUTION_NS = 500  # "a resolution of around 0.5 microseconds" (cudaEventElapsedTime)
COMMUNICATION = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ASSERTED = "device-side assert triggered"
NOT_WHILE_CAPTURING = "operation not permitted when stream is capturing"  # cudaErrorStreamCaptureUnsupported
CAPTURE_BROKEN = (
    "operation failed due to a previous error during capture"  # cudaErrorStreamCaptureInvalidated
)
CAPTURED_EVENT = "operation not permitted on an event last recorded in a capturing stream"
ISOLATED = "dependency created on uncaptured work in another stream"  # cudaErrorStreamCaptureIsolation
_ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below"
    " might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)


@dataclass(frozen=True)
class Work:
    """One piece of work of a device."""

    kind: str  # kernel, copy, set
    name: str
    device: int
    stream: int
    called_ns: int  # when the host began to launch it
    start_ns: int
    end_ns: int
    correlation: int  # the same as its runtime call's
    operator: int  # number of the operator that launched it; 0: none
    label: Any  # where the program was
    size_bytes: int = 0


@dataclass(frozen=True)
class RuntimeCall:
    """A call of the device's runtime by the host, such as cudaLaunchKernel."""

    name: str
    start_ns: int
    end_ns: int
    correlation: int
    operator: int
    thread: int


@dataclass
class HostSpan:
    """An operator, an autograd node or an annotation on a thread of the host."""

    kind: str  # cpu_op, user_annotation
    name: str
    number: int
    thread: int
    start_ns: int
    end_ns: int = 0
    sequence: int = -1
    shapes: list[list[int]] = field(default_factory=list)


@dataclass(eq=False)
class Capture:
    """Work of streams that goes into a graph instead of their queues."""

    mode: str  # global, thread_local, relaxed: whose unsafe calls break it
    thread: int
    valid: bool = True
    work: list[tuple[str, str, int, int]] = field(default_factory=list)  # kind, name, cost, bytes
    again: list[Callable[[], None]] = field(default_factory=list)  # computes the values once more


@dataclass(eq=False)
class Stream:
    """A queue of a device."""

    device: int
    number: int
    free_at: int = 0
    capture: Capture | None = None
    waiting: deque[int] = field(default_factory=deque)  # ends of work that may still have to be done


@dataclass(eq=False)
class Mark:
    """An event of the runtime."""

    timing: bool = False
    device: int | None = None  # of the stream that first recorded it
    moment_ns: int | None = None  # when the device passes it
    capture: Capture | None = None  # in which it was recorded last


class Device:
    """One device: its streams, its memory, and whether it has broken."""

    def __init__(self, index: int, capacity: int) -> None:
        self.index = index
        self.uuid = f"GPU-00000000-0000-0000-0000-{index:012d}"
        self.streams = {0: Stream(index, 0)}
        self.memory = Memory(capacity)
        self.failed: tuple[int, str] | None = None  # from when on, and what every call says then


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, int] = {}  # by device: number of the current stream
        self.operators: list[HostSpan] = []  # that are open


class Machine:
    """A host and its devices. Costs are the host's, in ns."""

    def __init__(
        self,
        devices: int = 1,
        *,
        clock: HostClock | None = None,
        record_ns: int = 4_000,
        launch_ns: int = 2_000,
        query_ns: int = 500,
        queue_length: int = 1_024,
        capacity: int = 16 << 30,
    ) -> None:
        self.queue_length = queue_length  # so many launches a host can be ahead: then launching waits
        self.clock = clock or HostClock()
        self.installed = [Device(index, capacity) for index in range(devices)]
        self.devices = self.installed  # those that the program sees
        self.record_ns, self.launch_ns, self.query_ns = record_ns, launch_ns, query_ns
        self.log: list[Work] = []
        self.calls: list[RuntimeCall] = []
        self.spans: list[HostSpan] = []
        self.capture: Capture | None = None
        self.find_label: Callable[[], Any] = lambda: None
        self.here = _OfThread()
        self.error_kind: type[Exception] = RuntimeError
        self.pid: int | None = None  # of the process that started the driver
        self.profiler_tells_kinds = True  # not up to torch 2.10
        self._correlations, self._numbers = count(1), count(1)  # two counts, whose numbers collide
        self._threads: dict[int, int] = {}

    # ---- where the program is

    @property
    def thread(self) -> int:
        """A small number for this thread, as torch's profiler gives one."""
        return self._threads.setdefault(threading.get_ident(), len(self._threads) + 1)

    def find_stream(self, device: int | None = None) -> Stream:
        """The current stream of this thread, on a device or on the current one."""
        device = self.here.device if device is None else device
        return self.devices[device].streams[self.here.streams.get(device, 0)]

    def make_stream(self, device: int) -> Stream:
        streams = self.devices[device].streams
        made = streams[len(streams)] = Stream(device, len(streams))
        return made

    def use_stream(self, stream: Stream) -> None:
        """As torch.cuda.set_stream: its device becomes the current one too."""
        self.here.device = stream.device
        self.here.streams[stream.device] = stream.number

    def begin_span(self, kind: str, name: str, **about: Any) -> HostSpan:
        span = HostSpan(kind, name, next(self._numbers), self.thread, self.clock.now(), **about)
        self.here.operators.append(span)
        self.clock.spend(SPAN_NS)
        return span

    def end_span(self, span: HostSpan) -> None:
        """It ends, and with it what was left open inside."""
        opened = self.here.operators
        while opened:
            last = opened.pop()
            self.clock.spend(SPAN_NS)
            last.end_ns = self.clock.now()
            self.spans.append(last)
            if last is span:
                break

    # ---- errors

    def make_error(self, text: str) -> Exception:
        return self.error_kind(f"CUDA error: {text}{_ADVICE}")

    def check_device(self, device: int) -> None:
        """A broken device answers every call with the same error: the context is lost (CUDAException.h)."""
        if self.pid not in (None, os.getpid()):
            raise self.make_error("initialization error")
        failed = self.devices[device].failed
        if failed is not None and self.clock.now() >= failed[0]:
            raise self.make_error(failed[1])

    def forbid_while_capturing(self, stream: Stream | None = None) -> None:
        """Unsafe calls while a stream captures end the capture (cudaThreadExchangeStreamCaptureMode)."""
        capture = self.capture
        if capture is None:
            return
        own_thread = capture.mode == "thread_local" and capture.thread == threading.get_ident()
        if capture.mode == "global" or own_thread or (stream is not None and stream.capture is capture):
            capture.valid = False
            raise self.make_error(NOT_WHILE_CAPTURING)

    # ---- work

    def call_runtime(self, name: str, cost_ns: int, device: int) -> RuntimeCall:
        """The host calls the runtime, which takes its time."""
        self.check_device(device)
        begin_ns = self.clock.now()
        self.clock.spend(cost_ns)
        return self._note_call(name, begin_ns)

    def _note_call(self, name: str, begin_ns: int) -> RuntimeCall:
        operator = self.here.operators[-1].number if self.here.operators else 0
        number = next(self._correlations)
        call = RuntimeCall(name, begin_ns, self.clock.now(), number, operator, self.thread)
        self.calls.append(call)
        return call

    def launch(
        self,
        name: str,
        cost_ns: int,
        kind: str = "kernel",
        *,
        stream: Stream | None = None,
        size_bytes: int = 0,
        call: str = "cudaLaunchKernel",
        breaks: str | None = None,
    ) -> Work | None:
        """Queue work; None while the stream is captured. `breaks`: it is the device's last."""
        stream = stream or self.find_stream()
        if stream.capture is not None and not stream.capture.valid:
            raise self.make_error(CAPTURE_BROKEN)
        called = self._call_launch(call, stream)
        if stream.capture is not None:
            stream.capture.work.append((kind, name, cost_ns, size_bytes))
            return None
        return self._queue(called, kind, name, cost_ns, stream, size_bytes, breaks)

    def launch_graph(self, captured: Capture) -> None:
        """Queue all work of a graph by one call."""
        stream = self.find_stream()
        called = self._call_launch("cudaGraphLaunch", stream)
        for kind, name, cost_ns, size_bytes in captured.work:
            self._queue(called, kind, name, cost_ns, stream, size_bytes, None)

    def _call_launch(self, call: str, stream: Stream) -> RuntimeCall:
        self.check_device(stream.device)
        begin_ns = self.clock.now()
        while len(stream.waiting) >= self.queue_length:
            self.clock.wait_until(stream.waiting.popleft())
        self.clock.spend(self.launch_ns)
        return self._note_call(call, begin_ns)

    def _queue(
        self,
        called: RuntimeCall,
        kind: str,
        name: str,
        cost_ns: int,
        stream: Stream,
        size_bytes: int,
        breaks: str | None,
    ) -> Work:
        start_ns = max(stream.free_at, self.clock.now())
        stream.free_at = start_ns + cost_ns
        while stream.waiting and stream.waiting[0] <= self.clock.now():
            stream.waiting.popleft()
        stream.waiting.append(stream.free_at)
        if breaks is not None:
            self.devices[stream.device].failed = (start_ns, breaks)
        where = (stream.device, stream.number, called.start_ns, start_ns, stream.free_at)
        work = Work(kind, name, *where, called.correlation, called.operator, self.find_label(), size_bytes)
        self.log.append(work)
        return work

    def synchronize_stream(self, stream: Stream, call: str = "cudaStreamSynchronize") -> None:
        """The host waits until the stream's work is done."""
        self.forbid_while_capturing(stream)
        self._wait_for(stream.device, stream.free_at, call)

    def synchronize_device(self, device: int) -> None:
        self.forbid_while_capturing()
        free_at = max(stream.free_at for stream in self.devices[device].streams.values())
        self._wait_for(device, free_at, "cudaDeviceSynchronize")

    def _wait_for(self, device: int, moment_ns: int, call: str) -> None:
        self.check_device(device)
        begin_ns = self.clock.now()
        failed = self.devices[device].failed
        self.clock.wait_until(moment_ns if failed is None else max(begin_ns, failed[0]))
        self._note_call(call, begin_ns)
        if failed is not None:
            raise self.make_error(failed[1])

    # ---- events: CUDAEvent.h

    def record_mark(self, mark: Mark, stream: Stream) -> None:
        if mark.device is not None and mark.device != stream.device:
            raise RuntimeError(
                f"Event device {mark.device} does not match recording stream's device {stream.device}."
            )
        self.call_runtime("cudaEventRecord", self.record_ns, stream.device)
        mark.device, mark.capture = stream.device, stream.capture
        mark.moment_ns = max(stream.free_at, self.clock.now())

    def wait_for_mark(self, mark: Mark, stream: Stream) -> None:
        """What comes to the stream from now on waits; a captured event draws it into its capture."""
        if mark.moment_ns is None:
            return
        self.call_runtime("cudaStreamWaitEvent", self.launch_ns, stream.device)
        if mark.capture is not None and mark.capture is self.capture:
            stream.capture = mark.capture
        elif stream.capture is not None:
            stream.capture.valid = False
            raise self.make_error(ISOLATED)
        else:
            stream.free_at = max(stream.free_at, mark.moment_ns)

    def has_passed(self, mark: Mark) -> bool:
        """Whether the device has passed it; one that was never recorded has passed."""
        if mark.moment_ns is None or mark.device is None:
            return True
        self._check_captured(mark)
        self.check_device(mark.device)
        self.clock.spend(self.query_ns)
        return self.clock.now() >= mark.moment_ns

    def synchronize_mark(self, mark: Mark) -> None:
        if mark.moment_ns is not None and mark.device is not None:
            self._check_captured(mark)
            self._wait_for(mark.device, mark.moment_ns, "cudaEventSynchronize")

    def _check_captured(self, mark: Mark) -> None:
        self.forbid_while_capturing()
        if mark.capture is not None:
            raise self.make_error(CAPTURED_EVENT)

    def elapsed_ms(self, first: Mark, last: Mark) -> float:
        """A float of 32 bits, in steps of the events' resolution."""
        if not (first.timing and last.timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if first.moment_ns is None or last.moment_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.has_passed(first) and self.has_passed(last)):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        steps = round((last.moment_ns - first.moment_ns) / EVENT_RESOLUTION_NS)
        found: float = struct.unpack("f", struct.pack("f", steps * EVENT_RESOLUTION_NS / 1e6))[0]
        return found

    # ---- captures

    def begin_capture(self, mode: str) -> Capture:
        stream = self.find_stream()
        if stream.number == 0:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to"
                " replay them on the default stream.)"
            )
        if self.capture is not None:
            raise self.make_error(NOT_WHILE_CAPTURING)
        self.capture = stream.capture = Capture(mode, threading.get_ident())
        return self.capture

    def end_capture(self) -> Capture:
        """Hand over what was captured; raises if something broke it."""
        ended, self.capture = self.capture, None
        for device in self.devices:
            for stream in device.streams.values():
                stream.capture = None
        if ended is None or not ended.valid:
            raise self.make_error(CAPTURE_BROKEN)
        return ended

"""A session of torch.profiler over the simulated machine: the same events, on a clock of its own.

As Kineto gives them: an operator has a number; what it launched has the number of the runtime's call
(`correlation_id`, a count of its own, whose numbers are operators' too) and the operator's as
`linked_correlation_id`. The device's events are those that end while the session runs, so work of before
leaks in, and work that is not waited for is missing; `stop` waits for the current device alone
(torch/autograd/profiler.py: `__exit__`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch._C._profiler import _ExperimentalConfig

from simulated.device import HostSpan, Machine, Work
from simulated.tensors import Put

CLOCK_OFFSET_NS = 7_000_000_000_000
_KINDS = {"kernel": "kernel", "copy": "gpu_memcpy", "set": "gpu_memset"}
_WAITS = {
    "cudaStreamSynchronize": "Stream Synchronize",
    "cudaDeviceSynchronize": "Context Synchronize",
    "cudaEventSynchronize": "Event Synchronize",
}


@dataclass(frozen=True)
class _EventData:
    name: str
    activity: str
    start_ns: int
    end_ns: int
    correlation: int
    linked: int = 0
    thread: int = 0
    sequence: int = -1
    forward_thread: int = 0  # of an autograd node: the thread that made it
    device: int = -1
    stream: int = -1
    shapes: list[list[int]] = field(default_factory=list)
    metadata: str = ""


class OlderKinetoEvent:
    """As torch's `_KinetoEvent` was up to 2.10: it did not say what kind of event it is."""

    def __init__(self, data: _EventData) -> None:
        self._data = data

    def name(self) -> str:
        return self._data.name

    def start_ns(self) -> int:
        return self._data.start_ns + CLOCK_OFFSET_NS

    def end_ns(self) -> int:
        return self._data.end_ns + CLOCK_OFFSET_NS

    def duration_ns(self) -> int:
        return self._data.end_ns - self._data.start_ns

    def start_thread_id(self) -> int:
        return self._data.thread

    end_thread_id = start_thread_id

    def fwd_thread_id(self) -> int:
        return self._data.forward_thread

    def correlation_id(self) -> int:
        return self._data.correlation

    def linked_correlation_id(self) -> int:
        return self._data.linked

    def sequence_nr(self) -> int:
        return self._data.sequence

    def device_type(self) -> DeviceType:
        return DeviceType.CPU if self._data.device < 0 else DeviceType.CUDA

    def device_index(self) -> int:
        return self._data.device

    def device_resource_id(self) -> int:
        return self._data.stream

    def shapes(self) -> list[list[int]]:
        return self._data.shapes

    def metadata_json(self) -> str:
        return self._data.metadata

    def is_user_annotation(self) -> bool:
        return self._data.activity in ("user_annotation", "gpu_user_annotation")

    def is_async(self) -> bool:
        return False

    def scope(self) -> int:
        return 7 if self.is_user_annotation() else 0


class KinetoEvent(OlderKinetoEvent):
    """As it is today."""

    def activity_type(self) -> str:
        return self._data.activity


class SimulatedProfile:
    """In the place of `torch.profiler.profile`."""

    def __init__(
        self, machine: Machine, *, activities: Any = None, experimental_config: Any = None, **_options: Any
    ) -> None:
        self._machine = machine
        wanted = [one.name for one in activities or torch.profiler.supported_activities()]
        self._on_device = "CUDA" in wanted
        self._with_metadata = _is_set(experimental_config, "expose_kineto_event_metadata")
        self._with_waits = _is_set(experimental_config, "enable_cuda_sync_events")
        self._begin_ns = self._end_ns = 0
        self.profiler = SimpleNamespace(kineto_results=None)

    def start(self) -> None:
        self._begin_ns = self._machine.clock.now()

    def stop(self) -> None:
        if self._on_device:
            torch.cuda.synchronize()
        self._end_ns = self._machine.clock.now()
        kind = KinetoEvent if self._machine.profiler_tells_kinds else OlderKinetoEvent
        events = [
            kind(data) for data in sorted(self._list_events(), key=lambda one: (one.start_ns, -one.end_ns))
        ]
        self.profiler.kineto_results = SimpleNamespace(
            events=lambda: events,
            experimental_event_tree=list,
            trace_start_ns=lambda: self._begin_ns + CLOCK_OFFSET_NS,
        )

    def __enter__(self) -> SimulatedProfile:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _list_events(self) -> Iterator[_EventData]:
        spans = [one for one in self._machine.spans if one.start_ns >= self._begin_ns]
        heard = {one.number for one in spans}
        made_by = next((one.thread for one in spans if not one.name.startswith("autograd::engine")), 0)
        for span in spans:
            about = (span.thread, span.sequence, made_by if span.sequence >= 0 else 0)
            times = (span.start_ns, span.end_ns, span.number)
            yield _EventData(span.name, span.kind, *times, 0, *about, shapes=span.shapes)
        if not self._on_device:
            return
        threads = {}
        for call in self._machine.calls:
            threads[call.correlation] = call.thread
            if call.start_ns >= self._begin_ns:
                linked = call.operator if call.operator in heard else 0
                about = (call.start_ns, call.end_ns, call.correlation, linked)
                # the system's number of the thread, not torch's
                yield _EventData(call.name, "cuda_runtime", *about, 140_000 + call.thread)
                if self._with_waits and call.name in _WAITS:
                    yield _EventData(_WAITS[call.name], "cuda_sync", *about, device=0, stream=0)
        done = [one for one in self._machine.log if self._begin_ns < one.end_ns <= self._end_ns]
        for work in done:
            linked = work.operator if work.operator in heard and work.called_ns >= self._begin_ns else 0
            about = (work.start_ns, work.end_ns, work.correlation, linked)
            place = {"device": work.device, "stream": work.stream}
            metadata = _describe_work(work) if self._with_metadata else ""
            yield _EventData(work.name, _KINDS[work.kind], *about, **place, metadata=metadata)
        for span in spans:
            if span.kind == "user_annotation":
                yield from _find_shadows(
                    span, [one for one in done if threads[one.correlation] == span.thread]
                )


def _find_shadows(span: HostSpan, done: list[Work]) -> Iterator[_EventData]:
    """Kineto draws an annotation on the device too, from the first work launched in it to the last."""
    inside = [one for one in done if span.start_ns <= one.called_ns < span.end_ns]
    for device, stream in {(one.device, one.stream) for one in inside}:
        own = [one for one in inside if (one.device, one.stream) == (device, stream)]
        times = (min(one.start_ns for one in own), max(one.end_ns for one in own))
        about = {"linked": span.number, "device": device, "stream": stream}
        yield _EventData(span.name, "gpu_user_annotation", *times, span.number, **about)


def _describe_work(work: Work) -> str:
    """Without the braces, as Kineto writes it."""
    about: dict[str, Any] = {"device": work.device, "context": 1, "stream": work.stream}
    about["correlation"] = work.correlation
    if work.kind == "kernel":
        about |= {"grid": [108, 1, 1], "block": [256, 1, 1], "blocks per SM": 1.0, "warps per SM": 8.0}
        about["est. achieved occupancy %"] = 50
    else:
        about["bytes"] = work.size_bytes
    return json.dumps(about)[1:-1]


def _is_set(config: Any, option: str) -> bool:
    """The options of a session can be written and not read: they are found by their place in the state."""
    try:
        asked = _ExperimentalConfig(**{option: True}).__getstate__()
    except TypeError:  # an older torch
        return False
    if config is None:
        return False
    plain = _ExperimentalConfig().__getstate__()
    place = next(number for number, value in enumerate(asked) if value != plain[number])
    return bool(config.__getstate__()[place])


def install_profiler(machine: Machine, put: Put) -> None:
    """Sessions, and spans that go round the dispatcher."""

    class Profile(SimulatedProfile):
        def __init__(self, **options: Any) -> None:
            super().__init__(machine, **options)

    class RecordFunction:
        def __init__(self, name: str, *_values: Any, **_more: Any) -> None:
            self._name = name

        def __enter__(self) -> None:
            self._span = machine.begin_span("user_annotation", self._name)

        def __exit__(self, *_error: object) -> None:
            machine.end_span(self._span)

    put(torch.profiler, "profile", Profile)
    put(torch._C._profiler, "_RecordFunctionFast", RecordFunction)

"""Events with the methods of torch's own event class (`torch._C._autograd._KinetoEvent`), made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

US = 1000
ON_HOST = (
    "cpu_op",
    "user_annotation",
    "python_function",
    "cuda_runtime",
    "cuda_driver",
    "xpu_runtime",
    "overhead",
)


@dataclass
class OldProfilerEvent:
    """As torch 2.6 and 2.8 have them: nobody says what an event is, and there is no metadata."""

    kind: str
    label: str
    start: int  # ns
    wall: int  # ns
    own: int = 0  # correlation id
    linked: int = 0
    thread: int = 1  # of the system; of device events: the stream
    torch_thread: int | None = None  # as torch counts them
    forward_thread: int = 0
    sequence: int = -1
    text: str = ""
    dims: list[Any] = field(default_factory=list)
    device: int = 0

    def name(self) -> str:
        return self.label

    def device_type(self) -> SimpleNamespace:
        return SimpleNamespace(name="CPU" if self.kind in ON_HOST else "CUDA")

    def is_user_annotation(self) -> bool:
        return self.kind in ("user_annotation", "gpu_user_annotation")

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return self.wall

    def start_thread_id(self) -> int:
        return self.thread if self.torch_thread is None else self.torch_thread

    def fwd_thread_id(self) -> int:
        return self.forward_thread

    def sequence_nr(self) -> int:
        return self.sequence

    def correlation_id(self) -> int:
        return self.own

    def linked_correlation_id(self) -> int:
        return self.linked

    def device_index(self) -> int:
        return self.device

    def device_resource_id(self) -> int:
        return self.thread

    def shapes(self) -> list[Any]:
        return self.dims


class ProfilerEvent(OldProfilerEvent):
    """As the newest torch has them."""

    def activity_type(self) -> str:
        return self.kind

    def metadata_json(self) -> str:
        return self.text


def make_older(event: ProfilerEvent) -> OldProfilerEvent:
    """The same event, as an older torch would have handed it over."""
    return OldProfilerEvent(**vars(event))

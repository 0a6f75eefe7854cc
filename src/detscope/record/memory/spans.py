"""What memory steps write into torch.profiler besides operators, and shapes seen at module borders."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch

from detscope.record.model.borders import BorderScribe, tensors_in
from detscope.record.steps.events import SPAN_PREFIX, EventBuffer

_WITH_MEMORY = (torch.Tensor, torch.nn.Parameter)  # other kinds may have none, and say so by an error
MARK_PREFIX = "detscope!"  # names of moments in torch.profiler, followed by their number


def open_span(name: str) -> Any:
    """Begin a span of our own in torch.profiler; it ends by `__exit__(None, None, None)`."""
    span = torch._C._profiler._RecordFunctionFast(name)
    span.__enter__()
    return span


def close_span(span: Any) -> None:
    """End a span."""
    span.__exit__(None, None, None)


def write_mark(number: int) -> None:
    """Write a moment into torch.profiler."""
    close_span(open_span(f"{MARK_PREFIX}{number}"))


class SpanBuffer(EventBuffer):
    """An event buffer whose phases are spans of torch.profiler too, while `spanning` is set."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spanning = False
        self.failed = False  # the phase that ended last was left by an exception
        self.after: dict[int, Callable[[], None]] = {}  # called when the phase of that number has ended
        self._open: list[tuple[int, Any]] = []

    def enter_node(self, number: int) -> int:
        """A phase begins."""
        self.failed = False
        time_ns = super().enter_node(number)
        if self.spanning:
            self._open.append((number, open_span(f"{SPAN_PREFIX}{number}")))
        return time_ns

    def exit_node(self, number: int) -> int:
        """A phase ends, and with it what an exception left open inside."""
        if any(opened == number for opened, _ in self._open):
            while True:
                opened, span = self._open.pop()
                close_span(span)
                if opened == number:
                    break
        time_ns = super().exit_node(number)
        self.failed = sys.exc_info()[0] is not None  # hooks are called while it is on its way
        if self.spanning and number in self.after and not self.failed:
            self.after[number]()
        return time_ns

    def close_spans(self) -> None:
        """End what is still open."""
        while self._open:
            close_span(self._open.pop()[1])


class SeenTensor(NamedTuple):
    """A tensor that passed a module's border."""

    time_ns: int
    address: int  # of its storage
    shape: torch.Size
    dtype: torch.dtype
    owner: int  # the module's number


class ShapeScribe(BorderScribe):
    """A scribe that also notes shapes of what goes into and comes out of modules, while `seen` is a list."""

    def __init__(self, buffer: EventBuffer) -> None:
        super().__init__(buffer)
        self._seen: list[SeenTensor] | None = None
        self.failed_in: int | None = None  # the innermost module that an exception left last
        self._failure = 0  # which one that was

    @property
    def seen(self) -> list[SeenTensor] | None:
        """What was seen so far; None while nothing is looked at."""
        return self._seen

    @seen.setter
    def seen(self, value: list[SeenTensor] | None) -> None:
        self._seen, self.looks = value, value is not None

    def note_failure(self, number: int, error: Exception) -> None:
        """Outer modules are left by the same exception: the first counts."""
        if id(error) != self._failure:
            self._failure, self.failed_in = id(error), number

    def call_noted(self, number: int, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """A call that notes the shapes of what goes in and comes out."""
        seen = self._seen
        if seen is None:
            return run(*args, **kwargs)
        _note_shapes(seen, args, number)
        output = run(*args, **kwargs)
        _note_shapes(seen, output, number)
        return output


def _note_shapes(seen: list[SeenTensor], value: Any, owner: int) -> None:
    for tensor in (value,) if type(value) is torch.Tensor else tensors_in(value):
        if tensor.layout is torch.strided and type(tensor) in _WITH_MEMORY:
            address = tensor.untyped_storage().data_ptr()
            seen.append(SeenTensor(perf_counter_ns(), address, tensor.shape, tensor.dtype, owner))

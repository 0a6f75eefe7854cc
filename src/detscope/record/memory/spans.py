"""What memory steps write into torch.profiler besides operators: phases and moments."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from detscope.record.model.borders import close_span, open_span
from detscope.record.steps.events import SPAN_PREFIX, EventBuffer

MARK_PREFIX = "detscope!"  # names of moments in torch.profiler, followed by their number


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

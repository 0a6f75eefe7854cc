"""One session of torch.profiler that listens to the allocator, and moments that both clocks know."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from detscope.record.memory_levels import process_levels
from detscope.record.memory.spans import SeeingScribe, SeenTensor, SpanningBuffer, write_mark
from detscope.record.memory.trace import Trace
from detscope.record.open_spans import OpenSpans

_CLOCK_MARKS = 3  # moments written to compare clocks; the quickest is believed


@dataclass
class Recorded:
    """What a session heard."""

    results: Any  # kept as a whole: the tree below goes with it
    seen: list[SeenTensor]
    clock: list[tuple[int, int, int]]  # mark, our time before it, how long it took

    @property
    def roots(self) -> Sequence[Any]:
        """The outermost events of all threads."""
        roots: Sequence[Any] = self.results.experimental_event_tree()
        return roots

    def offset_ns(self, trace: Trace) -> int:
        """The profiler's clock less ours."""
        known = [mark for mark in self.clock if mark[0] in trace.marks]
        if not known:
            return 0
        number, before_ns, _ = min(known, key=lambda mark: mark[2])
        return trace.marks[number] - before_ns


class MemorySession:
    """Starts and stops the profiler, with phases and modules as spans of their own in it."""

    def __init__(self, buffer: SpanningBuffer, scribe: SeeingScribe, spans: OpenSpans) -> None:
        self._spans = spans
        self._buffer = buffer
        self._scribe = scribe
        self._profile: Any = None
        self._marks = 0
        self._clock: list[tuple[int, int, int]] = []
        self.own_bytes = 0  # the most that the process grew by while a session's events were collected

    @property
    def on(self) -> bool:
        """Whether the profiler is running."""
        return self._profile is not None

    def start(self, shapes: bool) -> None:
        """Begin to listen; shapes of operators' inputs cost as much as all the rest."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        from torch._C._profiler import _ExperimentalConfig
        from torch.profiler import ProfilerActivity, profile

        # no stacks and no link to kernels
        self._profile = profile(
            activities=[ProfilerActivity.CPU],
            profile_memory=True,
            record_shapes=shapes,
            experimental_config=_ExperimentalConfig(disable_external_correlation=True),
        )
        with self._spans.closed():
            self._profile.start()
        self._buffer.spanning = True
        self._scribe.record_functions = True
        self._scribe.seen = []
        self._clock = []
        for _ in range(_CLOCK_MARKS):
            before_ns = perf_counter_ns()
            number = self.mark()
            self._clock.append((number, before_ns, perf_counter_ns() - before_ns))

    def mark(self) -> int:
        """Write a moment; returns its number."""
        self._marks += 1
        write_mark(self._marks)
        return self._marks

    def stop(self) -> Recorded:
        """End the session."""
        session, self._profile = self._profile, None
        self._buffer.spanning = False
        self._scribe.record_functions = False
        seen, self._scribe.seen = self._scribe.seen or [], None
        before = process_levels("self").get("process")
        with self._spans.closed():
            session.stop()
        after = process_levels("self").get("process")
        if before is not None and after is not None:
            self.own_bytes = max(self.own_bytes, after - before)
        return Recorded(session.profiler.kineto_results, seen, self._clock)

"""One step of torch.profiler, as far as memory goes: who allocated and freed what, when, doing what.

Memory steps write phases and moments into the profiler, besides operators.

Read from the profiler's own tree: only there an event has its address, and nesting is known already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from time import perf_counter_ns
from typing import Any, NamedTuple

from torch import Size
from torch._C._profiler import _TensorMetadata

from detscope.machine.profiling import make_session
from detscope.record.memory.live import read_process_levels
from detscope.record.model.borders import BorderWriter, SeenTensor, close_span, open_span
from detscope.record.operators.attribution import (
    ACCUMULATE,
    NOBODY,
    NODE,
    OPERATOR,
    OPTIMIZER_STEP,
    SPAN,
    Ownership,
    classify_name,
)
from detscope.record.operators.profiler import OpenSpans
from detscope.record.steps.events import SPAN_PREFIX, EventBuffer
from detscope.record.steps.nodes import NodeTable

MARK_PREFIX = "detscope!"  # names of moments in torch.profiler, followed by their number
MEMORY = "[memory]"  # the profiler's name for a change of memory
_MARK, _OTHER = -1, -2  # kinds of names besides those of all profiles
NO_OPERATOR = 0  # runs of operators are numbered from 1


class OperatorContext(NamedTuple):
    """Where code was: node of the model, stage, direction, outermost operator and which run of it."""

    owner: int = NOBODY
    stage: str = ""
    direction: str | None = None
    operator: str | None = None
    run: int = NO_OPERATOR


NOWHERE = OperatorContext()
# an allocation (bytes > 0) or a release: time, address, bytes, device, place
Change = tuple[int, int, int, str, OperatorContext]


@dataclass
class MemoryTrace:
    """All of one profiler session, times in the profiler's clock."""

    changes: list[Change] = field(default_factory=list)
    phases: list[tuple[int, int, str]] = field(default_factory=list)  # start, end, name
    marks: dict[int, int] = field(default_factory=dict)  # number -> time
    backward_operators_ns: list[int] = field(default_factory=list)  # begins, in order of time
    inputs: list[SeenTensor] = field(default_factory=list)  # of operators, where shapes are recorded
    last_operator: tuple[int, OperatorContext] | None = None  # begin and place of the one that began last


def read_trace(roots: Sequence[Any], nodes: NodeTable, owners: Ownership, on_host: bool) -> MemoryTrace:
    """Walk over the tree, outer before inner; this loop sees every operator and is kept lean."""
    trace = MemoryTrace()
    walk = _TraceWalk(trace, nodes, owners)
    changes, kinds = trace.changes, walk.kinds
    stack = [(root, NOWHERE) for root in reversed(roots)]
    while stack:
        event, place = stack.pop()
        name = event.name  # the cheapest thing to ask for
        if name == MEMORY:
            extra = event.extra_fields
            device = "cpu" if on_host else str(extra.device)
            changes.append((event.start_time_ns, extra.ptr, extra.alloc_size, device, place))
            continue
        if place.run == NO_OPERATOR:  # else inside an operator, where only memory is of interest
            kind = kinds.get(name)
            if kind is None:
                kind = kinds[name] = _classify_event(name)
            place = walk.enter_event(event, name, kind, place)
        children = event.children
        if children:
            children.reverse()
            for child in children:
                stack.append((child, place))
    changes.sort(key=itemgetter(0))  # stable: one thread's order stays
    trace.backward_operators_ns.sort()
    return trace


class _TraceWalk:
    def __init__(self, trace: MemoryTrace, nodes: NodeTable, owners: Ownership) -> None:
        self.trace = trace
        self.nodes = nodes
        self.owners = owners
        self.runs = NO_OPERATOR
        self.kinds: dict[str, int] = {}
        self.last_owner: dict[int, tuple[int, str]] = {}  # of the backward pass, per thread

    def enter_event(self, event: Any, name: str, kind: int, place: OperatorContext) -> OperatorContext:
        """Where code is inside this event."""
        if kind == OPERATOR:
            return self._enter_operator(event, name, place)
        if kind == SPAN:
            return self._enter_span(event, name, place)
        if kind in (NODE, ACCUMULATE):  # `AccumulateGrad` belongs to the node that ran before it
            sequence = event.extra_fields.sequence_number
            if kind == NODE and sequence >= 0:
                self.last_owner[event.start_tid] = self.owners.owner_at(sequence)
            return OperatorContext(*self.last_owner.get(event.start_tid, (NOBODY, "")), "backward")
        if kind == _MARK:
            self.trace.marks[int(name[len(MARK_PREFIX) :])] = event.start_time_ns
        elif kind != OPTIMIZER_STEP and not place.operator:
            return place._replace(operator=name)
        return place

    def _enter_operator(self, event: Any, name: str, place: OperatorContext) -> OperatorContext:
        """The outermost operator: everything inside belongs to this run of it."""
        extra = event.extra_fields
        self.runs += 1
        direction = place.direction
        start_ns = event.start_time_ns
        if direction == "backward":
            # operators of backward record no sequence number, those of a recomputed forward pass do
            if getattr(extra, "sequence_number", -1) >= 0:
                direction = "recompute"
            else:
                self.trace.backward_operators_ns.append(start_ns)
        for given in getattr(extra, "inputs", ()):
            if type(given) is _TensorMetadata and given.storage_data_ptr:
                about = (start_ns, given.storage_data_ptr, Size(given.sizes), given.dtype, place.owner)
                self.trace.inputs.append(SeenTensor(*about))
        inside = OperatorContext(place.owner, place.stage, direction, name, self.runs)
        last = self.trace.last_operator
        if last is None or start_ns > last[0]:
            self.trace.last_operator = (start_ns, inside)
        return inside

    def _enter_span(self, event: Any, name: str, place: OperatorContext) -> OperatorContext:
        node = self.nodes[int(name[len(SPAN_PREFIX) :])]
        if node.kind == "phase":
            self.trace.phases.append((event.start_time_ns, event.end_time_ns, node.path))
            direction = node.path if node.path in ("forward", "backward") else None
            return OperatorContext(direction=direction)
        if node.kind == "region" and place.direction is None:
            return place  # a part of loading data, say: no part of the model
        again = place.direction in ("backward", "recompute")
        direction = "recompute" if again else "forward"
        return OperatorContext(node.number, node.stage_within(place.stage) or "", direction)


def _classify_event(name: str) -> int:
    if name.startswith(MARK_PREFIX):
        return _MARK
    kind = classify_name(name)
    is_operator = "::" in name and not name.startswith("torch::autograd")
    return kind if kind != OPERATOR or is_operator else _OTHER


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


_CLOCK_MARKS = 3  # moments written to compare clocks; the quickest is believed


class SessionResult(NamedTuple):
    """What a session heard."""

    results: Any  # kept as a whole: the tree below goes with it
    seen: list[SeenTensor]
    clock: list[tuple[int, int, int]]  # how long a mark took, its number, our time before it


class MemorySession:
    """Starts and stops the profiler, with phases and modules as spans of their own in it."""

    def __init__(self, buffer: SpanBuffer, borders: BorderWriter, spans: OpenSpans) -> None:
        self._spans = spans
        self._buffer = buffer
        self._borders = borders
        self._profile: Any = None
        self._marks = 0
        self._clock: list[tuple[int, int, int]] = []
        self.own_bytes = 0  # the most that the process grew by while a session's events were collected

    @property
    def is_on(self) -> bool:
        """Whether the profiler is running."""
        return self._profile is not None

    def start(self, shapes: bool) -> None:
        """Begin to listen; shapes of operators' inputs cost as much as all the rest."""
        unlinked = "disable_external_correlation"  # no link to kernels
        self._profile = make_session(setting=unlinked, profile_memory=True, record_shapes=shapes)
        with self._spans.close_for_a_moment():
            self._profile.start()
        self._buffer.spanning = True
        self._borders.record_functions = True
        self._borders.seen = []
        self._clock = []
        for _ in range(_CLOCK_MARKS):
            before_ns = perf_counter_ns()
            number = self.write_moment()
            self._clock.append((perf_counter_ns() - before_ns, number, before_ns))

    def write_moment(self) -> int:
        """Write a moment; returns its number."""
        self._marks += 1
        close_span(open_span(f"{MARK_PREFIX}{self._marks}"))
        return self._marks

    def stop(self) -> SessionResult:
        """End the session."""
        session, self._profile = self._profile, None
        self._buffer.spanning = False
        self._borders.record_functions = False
        seen, self._borders.seen = self._borders.seen or [], None
        before = read_process_levels("self").get("process")
        with self._spans.close_for_a_moment():
            session.stop()
        after = read_process_levels("self").get("process")
        if before is not None and after is not None:
            self.own_bytes = max(self.own_bytes, after - before)
        return SessionResult(session.profiler.kineto_results, seen, self._clock)

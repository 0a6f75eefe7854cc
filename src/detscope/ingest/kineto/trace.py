"""The events of a trace file, sorted by role into columns."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from operator import attrgetter
from typing import Any

import numpy as np

from detscope.ingest.kineto.events import NO_ARGUMENTS, AnyEvent, Arguments, ExactEvent
from detscope.traces import naming
from detscope.traces.columns import (
    EventColumns,
    TraceEvents,
    ValueNumbers,
    check_names,
    gather_events,
    join_columns,
)
from detscope.traces.nesting import Numbers

NO_TIME = np.iinfo(np.int64).min
_LARGEST = 1 << 62
_LARGEST_US = 4e15  # beyond it nanoseconds do not fit

# what is kept of the arguments, by role
_ON_DEVICE = ("correlation", "external", "device", "stream")
_OF_OPERATOR = ("external", "sequence", "forward", "shapes", "stack")
_EXTRAS = {
    "kernel": (*_ON_DEVICE, "bytes", "blocks_per_sm", "occupancy"),
    "copy": (*_ON_DEVICE, "bytes"),
    "set": (*_ON_DEVICE, "bytes"),
    "sync": _ON_DEVICE,
    "runtime": ("correlation", "external"),
    "operator": _OF_OPERATOR,
    "bare": _OF_OPERATOR,
    "annotation": ("external",),
    "device annotation": ("device", "stream"),
    "memory": ("memory_bytes", "reserved", "device_type", "device_id"),
}

_OWN_ROLES = ("own step", "own phase", "own stage", "own module", "own loader")
_MOST_CATEGORIES = 20  # that are told apart, of those nobody knows
_MOST_FORWARD_THREADS = 64


class EventCollector:
    """Takes batches of events and hands out columns."""

    def __init__(self, count: Callable[[str, int], None], damage: Callable[[str, int], None]) -> None:
        self.names, self.threads = ValueNumbers(), ValueNumbers()
        self.shapes, self.stacks = ValueNumbers({b"": 0}), ValueNumbers({"": 0})
        self.events = 0
        self.kept = 0  # of them: what memory is taken for
        self.unknown: Counter[str] = Counter()  # events with a duration, by a category that is not known
        self.unknown_on_device: Counter[str] = Counter()  # of them: those that name a device or a stream
        self.batch_has_counters = False  # they are read again, with all their arguments
        self.batch_is_plain = False  # nothing but what the profiler writes by itself, with known keys
        self._count = count
        self._damage = damage  # counts what is broken, not only left out
        self._parts: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self._open: dict[int, list[tuple[AnyEvent, int]]] = defaultdict(list)

    def add_batch(self, batch: Sequence[AnyEvent]) -> None:
        """Sort a batch by role and append it to the columns."""
        self.events += len(batch)
        # the hot loop: most events have a duration and a known category, most others are flows
        found: dict[str, list[AnyEvent]] = defaultdict(list)
        appends: dict[str | None, Callable[[AnyEvent], None]] = {}
        for event in batch:
            phase = event.ph
            if phase == "X":
                append = appends.get(event.cat)
                if append is not None:
                    append(event)
                    continue
            elif phase == "f" or phase == "s":
                continue
            own = found[_find_role(event)]
            own.append(event)
            if phase == "X" and event.cat is not None:
                appends[event.cat] = own.append
        for role, events in found.items():
            if role == "mark":
                self._pair_marks(events)
            elif role == "no phase":
                self._damage("events without ph dropped", len(events))
            elif role == "ignored":
                self._count_unknown(events)
            elif role != "counters":
                self._append_events(role, events)
        self.batch_has_counters = "counters" in found
        self.batch_is_plain = not {"ignored", "annotation", "mark"} & set(found)

    def _count_unknown(self, events: Sequence[AnyEvent]) -> None:
        for event in events:
            if event.ph != "X" or not event.cat or event.cat.lower() in naming.SILENT_CATEGORIES:
                continue
            name = naming.scrub_homes(event.cat[:40])
            if name not in self.unknown and len(self.unknown) >= _MOST_CATEGORIES:
                name = "others"
            self.unknown[name] += 1
            if event.args is not None and (event.args.device >= 0 or event.args.stream != -1):
                self.unknown_on_device[name] += 1

    def _pair_marks(self, events: Sequence[AnyEvent]) -> None:
        """Begin and end marks: paired per thread, in the order of the file."""
        whole: dict[str, list[AnyEvent]] = defaultdict(list)
        for event in events:
            stack = self._open[self.threads[(event.pid, event.tid)]]
            start = find_time_ns(event)
            if start is None:
                self._damage("events without ts dropped", 1)
            elif event.ph == "B":
                stack.append((event, start))
                self.kept += 1
            elif stack:
                begin, begun = stack.pop()
                begin.dur = (start - begun) / 1e3
                begin.ph = "X"
                whole[_find_role(begin)].append(begin)
            else:
                self._count("end marks without a begin dropped", 1)
        for role, found in whole.items():
            if role != "ignored":
                self._append_events(role, found)

    def _append_events(self, role: str, events: list[AnyEvent]) -> None:
        starts = find_times_ns(events)
        walls = np.array([math.nan if event.dur is None else event.dur for event in events])
        if role == "memory":
            walls[:] = 0.0
        timed = starts != NO_TIME
        lasting = np.isfinite(walls) & (walls < _LARGEST_US)
        backward = walls < 0
        self._damage("events without ts dropped", int((~timed).sum()))
        self._damage("events without dur dropped", int((timed & ~lasting).sum()))
        self._damage("events with negative dur dropped", int((timed & lasting & backward).sum()))
        usable = timed & lasting & ~backward
        if not usable.all():
            events = [event for event, good in zip(events, usable.tolist(), strict=True) if good]
            starts, walls = starts[usable], walls[usable]
        if not events:
            return
        self.kept += len(events)
        part, names, threads = self._parts[role], self.names, self.threads
        part["start_ns"].append(starts)
        part["wall_ns"].append(np.rint(walls * 1e3).astype(np.int64))
        part["name"].append(np.array([names[event.name or ""] for event in events], np.int32))
        places = zip([event.pid for event in events], [event.tid for event in events], strict=True)
        part["thread"].append(np.array(list(map(threads.__getitem__, places)), np.int32))
        arguments = [event.args or NO_ARGUMENTS for event in events]
        for name in _EXTRAS.get(role, ()):
            part[name].append(self._make_extra(name, arguments, events))

    def _make_extra(self, name: str, arguments: list[Arguments], events: list[AnyEvent]) -> Any:
        if name == "external":
            found = _to_integers([a.external for a in arguments])
            if (found >= 0).all():
                return found
            return np.where(found >= 0, found, _to_integers([a.external_old for a in arguments]))
        if name == "shapes":
            return np.array([self.shapes[bytes(a.shapes)] for a in arguments], np.int32)
        values: list[Any] = list(map(attrgetter(name), arguments))
        if name == "stack":
            return np.array([self.stacks[stack] for stack in values], np.int32)
        if name in ("blocks_per_sm", "occupancy"):
            return np.array(values, np.float32)
        if name == "stream" and (set(map(type, values)) != {int} or min(values) < 0):
            values = [_find_stream(stream, event.tid) for stream, event in zip(values, events, strict=True)]
        elif name == "device" and min(values) < 0:  # the process is it, or it is the first
            values = [
                device if device >= 0 else event.pid if isinstance(event.pid, int) and event.pid < 1024 else 0
                for device, event in zip(values, events, strict=True)
            ]
        return _to_integers(values)

    def finish_columns(self) -> dict[str, EventColumns]:
        """All columns by role; what is still open is counted."""
        self._count("begin marks without an end dropped", sum(len(stack) for stack in self._open.values()))
        columns = {}
        for role in list(self._parts):
            part = {name: np.concatenate(pieces) for name, pieces in self._parts.pop(role).items()}
            columns[role] = EventColumns(
                part.pop("start_ns"), part.pop("wall_ns"), part.pop("name"), part.pop("thread"), part
            )
        return columns


def _find_role(event: AnyEvent) -> str:
    if event.ph == "X":
        if event.cat is None:  # traces before torch 1.5 have processes instead of categories
            return "kernel" if event.pid == "CUDA functions" else "bare"
        return naming.ROLES.get(event.cat) or naming.ROLES.get(event.cat.lower(), "ignored")
    if event.ph in ("i", "I") and event.name == naming.MEMORY_EVENT:
        return "memory"
    if event.ph in ("B", "E"):
        return "mark"
    return "no phase" if event.ph is None else "ignored"


def _to_integers(values: list[int]) -> Numbers:
    """Whole numbers; -1 for those that are too large to be any."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array([value if abs(value) < _LARGEST else -1 for value in values], np.int64)


def _find_stream(stream: int | str, thread: int | str | None) -> int:
    """The stream's number; old traces have it in the name of the thread only: "stream 7"."""
    for value in (stream, thread):
        if isinstance(value, int) and value >= 0:
            return value
        if isinstance(value, str) and (digits := value.rpartition(" ")[2]).isascii() and digits.isdigit():
            return int(digits[:18])
    return -1


def find_times_ns(events: Sequence[AnyEvent]) -> Numbers:
    """Begin of each event; the smallest integer where there is none."""
    if events and isinstance(events[0], ExactEvent):
        return np.array([NO_TIME if (t := find_time_ns(event)) is None else t for event in events], np.int64)
    floats = np.array([math.nan if event.ts is None else event.ts for event in events], np.float64)
    known = np.abs(floats) < _LARGEST_US
    floats = np.where(known, floats, 0.0)
    whole = np.floor(floats)  # nanoseconds of a date do not fit a float: the two parts go apart
    nanoseconds = whole.astype(np.int64) * 1000 + np.rint((floats - whole) * 1e3).astype(np.int64)
    return np.where(known, nanoseconds, NO_TIME)


def find_time_ns(event: AnyEvent) -> int | None:
    """Begin of one event."""
    value = event.ts
    if value is None or (isinstance(value, Decimal) and value.is_nan()):
        return None
    if not -_LARGEST_US < value < _LARGEST_US:
        return None
    if isinstance(value, Decimal):
        return int((value * 1000).to_integral_value(ROUND_HALF_UP))
    return math.floor(value) * 1000 + round((value - math.floor(value)) * 1e3)


def sort_events(collector: EventCollector) -> TraceEvents:
    """All events of a file by what they are."""
    columns = collector.finish_columns()
    names = [naming.scrub_homes(name) for name in collector.names]
    own = {role: columns.pop(role) for role in _OWN_ROLES if role in columns}
    operators, marks = _split_marks(names, columns.pop("operator", join_columns()))
    bare, more_marks = _split_bare(names, columns.pop("bare", join_columns()))
    operators = join_columns(operators, bare)
    if own:  # detscope's own trace has a track per kind; all of it but the workers ran on one thread
        for part in (*(part for role, part in own.items() if role != "own loader"), operators, marks):
            part.thread[:] = 0
    if "forward" in operators.extra:
        operators.extra["forward"] = _match_forward_threads(names, operators)
    columns["operator"] = operators
    annotations = columns.pop("annotation", join_columns())
    columns["annotation"] = join_columns(annotations, marks, more_marks)
    shapes = [_write_shapes(text) for text in collector.shapes]
    return gather_events(columns, names, list(collector.threads), shapes, list(collector.stacks), own)


def _match_forward_threads(names: list[str], operators: EventColumns) -> Numbers:
    """For each autograd node the thread that made it; -1 where nobody can tell.

    The profiler numbers forward threads in its own way. A number stands for the thread on which most of the
    sequence numbers that its nodes have were handed out; no two numbers stand for the same thread.
    """
    sequence, given = operators.get_extra("sequence"), operators.extra["forward"]
    nodes = check_names(names, operators, naming.BACKWARD_OPERATOR.search) & (sequence >= 0) & (given > 0)
    made = np.flatnonzero(~nodes & (sequence >= 0))
    found = np.full(len(operators), -1, np.int64)
    numbers = np.unique(given[nodes])
    if not len(made) or len(numbers) > _MOST_FORWARD_THREADS:
        return found
    width = int(operators.thread.max()) + 1
    votes = np.zeros((len(numbers), width), np.int64)
    for row, number in enumerate(numbers.tolist()):
        handed_out = made[np.isin(sequence[made], sequence[nodes & (given == number)])]
        votes[row] = np.bincount(operators.thread[handed_out], minlength=width)
    while votes.max(initial=0) > 0:
        row, thread = divmod(int(votes.argmax()), width)
        found[nodes & (given == numbers[row])] = thread
        votes[row], votes[:, thread] = 0, 0
    return found


def _write_shapes(text: bytes) -> str:
    """[[2, 3, 8], [], [4]] -> 2x3x8, 4"""
    inner = text.decode("ascii", "replace").replace(" ", "").replace("\n", "")
    shapes = [part.strip("[],") for part in inner.split("],")]
    return ", ".join(shape.replace(",", "x") for shape in shapes if shape)[:200]


def _split_marks(names: list[str], operators: EventColumns) -> tuple[EventColumns, EventColumns]:
    """Old traces have the marks of steps, loader and optimizer among the operators."""
    patterns = (naming.STEP_MARK, naming.LOADER_MARK, naming.OPTIMIZER_MARK)
    marks = check_names(names, operators, lambda name: any(mark.search(name) for mark in patterns))
    if not marks.any():
        return operators, join_columns()
    return operators.take_rows(~marks), operators.take_rows(marks)


def _split_bare(names: list[str], bare: EventColumns) -> tuple[EventColumns, EventColumns]:
    """Traces without categories: what follows right behind an entering mark is an annotation."""
    if not len(bare):
        return bare, join_columns()
    bare = bare.take_rows(np.lexsort((bare.start_ns, bare.thread)))
    enters = check_names(names, bare, lambda name: name == naming.RECORD_ENTER)
    annotated = np.concatenate([[False], enters[:-1] & (bare.thread[1:] == bare.thread[:-1])])
    marks = check_names(names, bare, naming.RECORD_MARKS.search)
    annotated &= ~marks
    operators, known = _split_marks(names, bare.take_rows(~marks & ~annotated))
    return operators, join_columns(bare.take_rows(annotated), known)

"""Raw events of torch's profiler as the columns that a trace file gives; from there on both go one way.

Attribute by attribute: building the profiler's Python event tree takes a hundred times as long. What an older
torch does not say of its events (before 2.11 not even what they are) is told by their names, or is missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from detscope.record.steps.events import SPAN_PREFIX
from detscope.traces.columns import EventColumns, Flags, TraceEvents, ValueNumbers, check_names, gather_events
from detscope.traces.naming import BACKWARD_OPERATOR, DEVICE_ROLES, ROLES, SYNCHRONISATION

SPAN_ROLE, CLOCK_ROLE = "own span", "own clock"  # of a module; a moment, by the recorder's clock
CLOCK_PREFIX = "detscope@"  # name of a moment, followed by its time
_OWN = {SPAN_PREFIX: SPAN_ROLE, CLOCK_PREFIX: CLOCK_ROLE}
_ROLES = ("operator", "annotation", "python", "runtime", "device annotation", *DEVICE_ROLES, *_OWN.values())
_IGNORED = -1
_SHAPES_FROM_NS = 10_000  # shapes of shorter operators are not worth their reading
_RUNTIME_CALL = re.compile(r"^(?:cuda|cu|hip|ur|ze)[A-Z]|^INVALID$")
_EVENT_RECORD = re.compile(r"^(?:cuda|cu|hip)Event(?:Record|Create|Query|ElapsedTime)")
# column -> where the profiler's text about a kernel or a copy has it
_METADATA = {
    "bytes": re.compile(r'"bytes": (\d{1,18})\b'),
    "blocks_per_sm": re.compile(r'"blocks per SM": ([\d.]+)'),
    "occupancy": re.compile(r'"est\. achieved occupancy %": ([\d.]+)'),
}


def read_profiler_events(events: Sequence[Any], device: bool, shapes: bool) -> TraceEvents:
    """Read all events of a session; what only a device's events have, only where a device was recorded."""
    numbers = ValueNumbers()
    codes = np.array([numbers[event.name()] for event in events], np.int32)
    names = list(numbers)
    # threads by the system's numbers, which runtime calls have too; without a device torch's own will do
    ids = [event.device_resource_id() if device else event.start_thread_id() for event in events]
    threads, places = np.unique(np.array(ids, np.int64), return_inverse=True)
    whole = EventColumns(
        np.array([event.start_ns() for event in events], np.int64),
        np.array([event.duration_ns() for event in events], np.int64),
        codes,
        places.astype(np.int32),
    )
    roles = _find_roles(events, names, codes, device)
    columns: dict[str, EventColumns] = {}
    texts = [""]
    for number, role in enumerate(_ROLES):
        chosen = np.flatnonzero(roles == number)
        if not len(chosen):
            continue
        part, own = whole.take_rows(chosen), [events[index] for index in chosen.tolist()]
        columns[role] = part
        if role == "operator":
            _read_operators(part, own, check_names(names, part, BACKWARD_OPERATOR.search))
            if shapes:
                texts = _read_shapes(part, own)
        elif role in DEVICE_ROLES:
            _read_device(part, own, threads[part.thread])
        if device and role in ("operator", SPAN_ROLE):
            part.extra["external"] = np.array([event.correlation_id() for event in own], np.int64)
        elif role in ("runtime", *DEVICE_ROLES):
            part.extra["correlation"] = np.array([event.correlation_id() for event in own], np.int64)
            part.extra["external"] = np.array([event.linked_correlation_id() for event in own], np.int64)
    ours = {role: columns.pop(role) for role in _OWN.values() if role in columns}
    if SPAN_ROLE in ours and "runtime" in columns:
        columns["runtime"] = _drop_own_records(names, columns["runtime"], ours[SPAN_ROLE])
    return gather_events(columns, names, [(None, number) for number in threads.tolist()], texts, [""], ours)


def _find_roles(events: Sequence[Any], names: list[str], codes: Any, device: bool) -> Any:
    """For each event: what it is, as an index into the roles."""
    by_word = {role: number for number, role in enumerate(_ROLES)}
    if not device:  # on the host a name is one thing: an operator, or an annotation
        kinds, asked = codes, np.unique(codes, return_index=True)[1].tolist()
        words = [find_role(events[index]) for index in asked]
    else:
        numbers = ValueNumbers()
        kinds = np.array([numbers[find_role(event)] for event in events], np.int64)
        words = list(numbers)
    roles = np.array([by_word.get(word, _IGNORED) for word in words], np.int64)[kinds]
    on_host = (roles == by_word["operator"]) | (roles == by_word["annotation"])
    for prefix, role in _OWN.items():
        ours = np.array([name.startswith(prefix) for name in names], bool)[codes]
        roles[ours] = np.where(on_host[ours], by_word[role], _IGNORED)
    return roles


def find_role(event: Any) -> str:
    """What an event is, by the profiler's own word for it; else by its device and its name."""
    ask = getattr(event, "activity_type", None)
    if ask is not None and isinstance(activity := ask(), str):  # a number in some versions
        return ROLES.get(activity, "ignored")
    name = event.name()
    annotated = event.is_user_annotation() if hasattr(event, "is_user_annotation") else False
    if event.device_type().name != "CPU":
        if annotated:
            return "device annotation"
        if name.startswith(("Memcpy", "Memset")):
            return "copy" if name.startswith("Memcpy") else "set"
        return "sync" if SYNCHRONISATION.search(name) else "kernel"
    if annotated:
        return "annotation"
    # by name and not by link: runtime calls count numbers of their own, which equal those of operators
    if _RUNTIME_CALL.match(name):
        return "runtime"
    return "operator" if event.correlation_id() > 0 else "ignored"


def _read_operators(part: EventColumns, events: list[Any], autograd: Flags) -> None:
    """Sequence numbers of autograd, and which thread gave each node its number."""
    part.extra["sequence"] = np.array([event.sequence_nr() for event in events], np.int64)
    threads, asked = np.unique(part.thread, return_index=True)
    by_number = {
        events[index].start_thread_id(): thread for thread, index in zip(threads, asked, strict=True)
    }
    part.extra["forward"] = forward = np.full(len(part), -1, np.int64)
    nodes = np.flatnonzero(autograd).tolist()
    forward[nodes] = [by_number.get(events[index].fwd_thread_id(), -1) for index in nodes]


def _read_shapes(part: EventColumns, events: list[Any]) -> list[str]:
    """Shapes of operators' inputs as texts, each once: 2x3x8, 4."""
    numbers = ValueNumbers({"": 0})
    part.extra["shapes"] = codes = np.zeros(len(part), np.int32)
    for index in np.flatnonzero(part.wall_ns >= _SHAPES_FROM_NS).tolist():
        texts = ["x".join(map(str, shape)) for shape in events[index].shapes() if shape]
        codes[index] = numbers[", ".join(texts)[:200]]
    return list(numbers)


def _read_device(part: EventColumns, events: list[Any], streams: Any) -> None:
    """Where it ran; launch sizes and bytes, where this torch hands them over."""
    part.extra["device"] = np.array([event.device_index() for event in events], np.int64)
    part.extra["stream"] = streams
    has_texts = hasattr(events[0], "metadata_json")
    texts = [event.metadata_json() for event in events] if has_texts else []
    for column, pattern in _METADATA.items() if has_texts else ():
        found = [pattern.search(text) for text in texts]
        if column == "bytes":
            part.extra[column] = np.array([int(one[1]) if one else -1 for one in found], np.int64)
        else:
            part.extra[column] = np.array([float(one[1]) if one else np.nan for one in found], np.float32)


def _drop_own_records(names: list[str], runtime: EventColumns, spans: EventColumns) -> EventColumns:
    """Without the event records right inside of our spans: they may be marks of ours, and queue nothing."""
    ours = check_names(names, runtime, _EVENT_RECORD.search)
    ours &= np.isin(runtime.extra["external"], spans.extra["external"])
    return runtime.take_rows(~ours) if ours.any() else runtime

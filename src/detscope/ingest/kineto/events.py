"""Events of a trace, decoded: whole batches at once, damaged ones event by event."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from detscope.ingest.kineto.stream import Text, pieces

_BARE_NUMBERS = re.compile(rb":\s*-?(?:inf|nan)\b")
_END_OF_LIST = re.compile(rb"\}\s*+(\])")
_LARGEST = 1 << 62
_JOINED_PIECES = 3
NO_TEXT = msgspec.Raw(b"")


class Arguments(msgspec.Struct, gc=False):
    """What is used of an event's arguments."""

    correlation: int = -1
    external: int = msgspec.field(default=-1, name="External id")
    external_old: int = msgspec.field(default=-1, name="external id")
    device: int = -1
    stream: int | str = -1
    bytes: int = -1
    blocks_per_sm: float = msgspec.field(default=math.nan, name="blocks per SM")
    occupancy: float = msgspec.field(default=math.nan, name="est. achieved occupancy %")
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    shapes: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input Dims")
    stack: str = msgspec.field(default="", name="Call stack")
    hierarchy: str = msgspec.field(default="", name="Module Hierarchy")
    memory_bytes: int = msgspec.field(default=0, name="Bytes")
    reserved: int = msgspec.field(default=-1, name="Total Reserved")
    allocated: int = msgspec.field(default=-1, name="Total Allocated")
    device_type: int = msgspec.field(default=-1, name="Device Type")
    device_id: int = msgspec.field(default=-1, name="Device Id")


class Event(msgspec.Struct, gc=False):
    """One event; what is missing stays None and is counted where it is needed."""

    ph: str | None = None
    ts: float | None = None
    dur: float | None = None
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: Arguments | None = None


class ExactEvent(msgspec.Struct, gc=False):
    """An event whose time has more digits than a float holds: it stays text."""

    ph: str | None = None
    ts: msgspec.Raw = NO_TEXT
    dur: float | None = None
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: Arguments | None = None


class CounterEvent(msgspec.Struct, gc=False):
    """A range with counters: all its arguments are figures."""

    cat: str | None = None
    name: str | None = None
    ts: float | None = None
    dur: float | None = None
    args: dict[str, Any] | None = None


NO_ARGUMENTS = Arguments()
AnyEvent = Event | ExactEvent
_DECODE_EVENTS = msgspec.json.Decoder(list[Event])
_DECODE_EXACT = msgspec.json.Decoder(list[ExactEvent])
_DECODE_EVENT = msgspec.json.Decoder(Event)
_DECODE_EXACT_EVENT = msgspec.json.Decoder(ExactEvent)
_DECODE_COUNTERS = msgspec.json.Decoder(list[CounterEvent])
_DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, UnicodeError)


def decode(data: bytes, text: Text, count: Callable[[str, int], None]) -> list[AnyEvent]:
    """The events of a batch. What cannot be read is counted by kind."""
    whole = b"[" + data + b"]"
    try:
        return _DECODE_EXACT.decode(whole) if text.fraction_digits else _DECODE_EVENTS.decode(whole)  # type: ignore[return-value]
    except _DECODE_ERRORS:
        return list(_one_by_one(data, text, count))


def decode_counters(data: bytes) -> list[CounterEvent]:
    """Ranges with counters of a batch; none where it is damaged."""
    try:
        events = _DECODE_COUNTERS.decode(b"[" + data + b"]")
    except _DECODE_ERRORS:
        return []
    return [event for event in events if event.cat == "cuda_profiler_range" and event.args]


def _one_by_one(data: bytes, text: Text, count: Callable[[str, int], None]) -> Iterator[AnyEvent]:
    waiting: list[bytes] = []
    for piece in pieces(data, text.border):
        event = decode_one(piece, exact=text.fraction_digits)
        if event is not None:
            count("damaged events dropped", len(waiting))
            waiting = []
            yield event
            continue
        waiting.append(piece)
        joined = decode_one(b",".join(waiting), text.fraction_digits) if len(waiting) > 1 else None
        if joined is None:
            joined = _event_before_the_end(piece, data, text)
        if joined is not None:  # what looked like a border was within one event
            waiting = []
            yield joined
            if text.ended:
                return
        elif len(waiting) > _JOINED_PIECES:
            count("damaged events dropped", 1)
            waiting = waiting[1:]
    count("damaged events dropped", len([piece for piece in waiting if piece.strip()]))


def _event_before_the_end(piece: bytes, data: bytes, text: Text) -> AnyEvent | None:
    """The last event of the list, where the piece goes on beyond the list; the rest is metadata."""
    begin = data.find(piece)
    for found in _END_OF_LIST.finditer(piece):
        event = decode_one(piece[: found.start() + 1], text.fraction_digits)
        if event is not None:
            text.after, text.ended = data[begin + found.end() :], True
            return event
    return None


def decode_one(piece: bytes, exact: bool) -> AnyEvent | None:
    """One event, however odd: strings for numbers, NaN, null where a number belongs."""
    try:
        return _DECODE_EXACT_EVENT.decode(piece) if exact else _DECODE_EVENT.decode(piece)
    except _DECODE_ERRORS:
        pass
    try:
        return _coerced(msgspec.json.decode(piece), exact)
    except _DECODE_ERRORS:
        pass
    try:
        text = _BARE_NUMBERS.sub(b":null", piece).decode("utf-8", errors="replace")
        return _coerced(json.loads(text, parse_int=_bounded_int), exact)
    except _DECODE_ERRORS:
        return None


def _bounded_int(digits: str) -> float | int:
    """Numbers of thousands of digits are no numbers of a trace."""
    return int(digits) if len(digits) < 40 else math.nan


def _coerced(value: object, exact: bool) -> AnyEvent | None:
    if not isinstance(value, dict):
        return None
    given = value.get("args")
    time_us = _float(value.get("ts"))
    parts: dict[str, Any] = {
        "ph": _text(value.get("ph")),
        "dur": _float(value.get("dur")),
        "cat": _text(value.get("cat")),
        "name": _text(value.get("name")),
        "pid": _place(value.get("pid")),
        "tid": _place(value.get("tid")),
        "args": _coerced_arguments(given) if isinstance(given, dict) else None,
    }
    if not exact:
        return Event(ts=time_us, **parts)
    return ExactEvent(ts=NO_TEXT if time_us is None else msgspec.Raw(repr(time_us).encode()), **parts)


def _coerced_arguments(given: dict[Any, Any]) -> Arguments:
    arguments = Arguments()
    for field in msgspec.structs.fields(Arguments):
        value = given.get(field.encode_name)
        if value is None or field.name == "shapes":
            continue
        if field.name in ("stack", "hierarchy"):
            setattr(arguments, field.name, value if isinstance(value, str) else "")
        elif field.name == "stream":
            place = _place(value)
            setattr(arguments, field.name, -1 if place is None else place)
        else:
            number = _float(value)
            if number is not None:
                is_float = field.name in ("blocks_per_sm", "occupancy")
                setattr(arguments, field.name, number if is_float else _as_int(value, number))
    return arguments


def _as_int(value: object, number: float) -> int:
    whole = value if isinstance(value, int) else int(number)
    return whole if -_LARGEST < whole < _LARGEST else -1


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _place(value: object) -> int | str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if -_LARGEST < value < _LARGEST else None
    return value if isinstance(value, str) else None


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None

"""Events of a trace, decoded: whole batches at once, damaged ones event by event."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgspec

from detscope.ingest.kineto.stream import TraceText, split_events

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
    memory_bytes: int = msgspec.field(default=0, name="Bytes")
    reserved: int = msgspec.field(default=-1, name="Total Reserved")
    device_type: int = msgspec.field(default=-1, name="Device Type")
    device_id: int = msgspec.field(default=-1, name="Device Id")


class TraceEvent(msgspec.Struct, gc=False):
    """One event but for its time; what is missing stays None and is counted where it is needed."""

    ph: str | None = None
    dur: float | None = None
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: Arguments | None = None


class FloatEvent(TraceEvent, gc=False):
    """An event as most files have it."""

    ts: float | None = None


class ExactEvent(TraceEvent, gc=False):
    """An event whose time has more digits than a float holds."""

    ts: Decimal | None = None


class CounterEvent(msgspec.Struct, gc=False):
    """A range with counters: all its arguments are figures."""

    cat: str | None = None
    name: str | None = None
    ts: float | None = None
    dur: float | None = None
    args: dict[str, Any] | None = None


NO_ARGUMENTS = Arguments()
AnyEvent = FloatEvent | ExactEvent
# by whether times have more digits than a float holds
_EVENT_TYPES: dict[bool, Any] = {False: FloatEvent, True: ExactEvent}
_DECODE_LIST = {exact: msgspec.json.Decoder(list[kind]) for exact, kind in _EVENT_TYPES.items()}  # type: ignore[valid-type]
_DECODE_EVENT = {exact: msgspec.json.Decoder(kind) for exact, kind in _EVENT_TYPES.items()}
_DECODE_COUNTERS = msgspec.json.Decoder(list[CounterEvent])
_DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, UnicodeError)


def decode_events(data: bytes, text: TraceText, count: Callable[[str, int], None]) -> list[AnyEvent]:
    """The events of a batch. What cannot be read is counted by kind."""
    try:
        events: list[AnyEvent] = _DECODE_LIST[text.fraction_digits].decode(b"[" + data + b"]")
        return events
    except _DECODE_ERRORS:
        return list(_decode_damaged(data, text, count))


def decode_counters(data: bytes) -> list[CounterEvent]:
    """Ranges with counters of a batch; none where it is damaged."""
    try:
        events = _DECODE_COUNTERS.decode(b"[" + data + b"]")
    except _DECODE_ERRORS:
        return []
    return [event for event in events if event.cat == "cuda_profiler_range" and event.args]


def _decode_damaged(data: bytes, text: TraceText, count: Callable[[str, int], None]) -> Iterator[AnyEvent]:
    """Event by event; what looked like a border may have been within one event."""
    waiting: list[bytes] = []
    for piece in split_events(data, text.border):
        event = _decode_event(piece, text.fraction_digits)
        if event is not None:
            count("damaged events dropped", len(waiting))
            waiting = []
            yield event
            continue
        waiting.append(piece)
        event = _decode_event(b",".join(waiting), text.fraction_digits) if len(waiting) > 1 else None
        if event is None:  # the last of the list, where the piece goes on beyond the list, with metadata
            for found in _END_OF_LIST.finditer(piece):
                event = _decode_event(piece[: found.start() + 1], text.fraction_digits)
                if event is not None:
                    text.after, text.ended = data[data.find(piece) + found.end() :], True
                    break
        if event is not None:
            waiting = []
            yield event
            if text.ended:
                return
        elif len(waiting) > _JOINED_PIECES:
            count("damaged events dropped", 1)
            waiting = waiting[1:]
    count("damaged events dropped", len([piece for piece in waiting if piece.strip()]))


def _decode_event(piece: bytes, exact: bool) -> AnyEvent | None:
    """One event, however odd: strings for numbers, NaN, null where a number belongs."""
    try:
        event: AnyEvent = _DECODE_EVENT[exact].decode(piece)
        return event
    except _DECODE_ERRORS:
        pass
    try:
        return _coerce_event(msgspec.json.decode(piece), exact)
    except _DECODE_ERRORS:
        pass
    try:
        text = _BARE_NUMBERS.sub(b":null", piece).decode("utf-8", errors="replace")
        # numbers of thousands of digits are no numbers of a trace
        value = json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 40 else math.nan)
        return _coerce_event(value, exact)
    except _DECODE_ERRORS:
        return None


def _coerce_event(value: object, exact: bool) -> AnyEvent | None:
    if not isinstance(value, dict):
        return None
    found = _convert_fields(value, TraceEvent)
    if isinstance(given := value.get("args"), dict):
        found["args"] = Arguments(**_convert_fields(given, Arguments))
    time_us = _convert_fields(value, FloatEvent).get("ts")
    if exact and time_us is not None:
        return ExactEvent(ts=Decimal(repr(time_us)), **found)
    return (ExactEvent if exact else FloatEvent)(ts=time_us, **found)


def _convert_fields(value: dict[Any, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Every field that can be what it should be; shapes are no text any more."""
    found = {}
    for field in msgspec.structs.fields(kind):
        given = value.get(field.encode_name)
        if given is not None and field.type is not msgspec.Raw and field.name != "args":
            with suppress(*_DECODE_ERRORS):
                found[field.name] = msgspec.convert(given, field.type, strict=False)
    return found

"""A trace file as events, in bounded memory, whatever state the file is in.

The list of events is cut between two events, at places that look like a border. Whether it was one is told
by decoding the batch: a piece that ends inside an event does not decode. Whole batches are decoded at once,
damaged ones event by event.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from detscope.ingest.files import RecordedFile
from detscope.limits import read_limit

CHUNK_BYTES = 1 << 19
MOST_BYTES_OF_METADATA = 1 << 25
_MOST_CHUNKS_OF_METADATA = 16
_TAIL_BYTES = 1 << 16
_FIRST_TAIL_BYTES = 1 << 12
_FIRST_KEYS = {b"ph", b"name", b"cat", b"ts", b"pid", b"tid"}
_LIST_OF_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*"([A-Za-z_]{1,24})"')
_END_OF_LIST = re.compile(rb"\}\s*+(\])\s*+(?:,|\}|$)")
_FRACTION = re.compile(rb'"ts"\s*:\s*\d{12,}\.\d')
_EMPTY_LIST = re.compile(rb"\s*\]")

_BARE_NUMBERS = re.compile(rb":\s*-?(?:inf|nan)\b")
_LIST_END = re.compile(rb"\}\s*+(\])")
_LARGEST = 1 << 62
_JOINED_PIECES = 3
NO_TEXT = msgspec.Raw(b"")


@dataclass
class TraceText:
    """What was found around the events, and what of the file could not be read."""

    before: bytes = b""  # of the object, up to the list of events
    after: bytes = b""
    skipped_bytes: int = 0
    ended: bool = False  # set by who decodes: the list closed within the last batch
    stopped: str = ""  # the limit at which reading ended, where it was not the end of the file
    cut: bool = False  # the file ends within the list, or cannot be unpacked to its end
    found: bool = False  # a list of events begins somewhere
    fraction_digits: bool = False  # times have more digits than a float holds
    border: re.Pattern[bytes] = field(default_factory=lambda: _border_pattern(_FIRST_KEYS))


def _border_pattern(keys: set[bytes]) -> re.Pattern[bytes]:
    """The end of one event and the begin of the next; events begin with one of few keys."""
    alternatives = b"|".join(sorted(re.escape(key) for key in keys))
    return re.compile(rb'\}\s*+,\s*+(?=\{\s*+"(?:' + alternatives + rb')")')


def _read_chunks(path: Path, text: TraceText) -> Iterator[bytes]:
    """The file's bytes, as far as they can be unpacked and are not beyond what its size can mean."""
    recorded = RecordedFile(path)
    done, most = 0, recorded.most_bytes
    for chunk in recorded.read_pieces(CHUNK_BYTES):
        done += len(chunk)
        yield chunk
        if done > most:
            text.stopped = "recording_ratio"
            return
    text.cut = text.cut or recorded.error is not None


def read_batches(path: Path, text: TraceText) -> Iterator[bytes]:
    """Text of many events each, without the comma between two batches; the last may hold what follows."""
    stream = _read_chunks(path, text)
    carry = _find_list(stream, text)
    if found := _FIRST_KEY.match(carry):
        text.border = _border_pattern(_FIRST_KEYS | {found.group(1)})
    text.fraction_digits = _FRACTION.search(carry[:CHUNK_BYTES]) is not None
    for chunk in stream:
        data = carry + chunk
        cut = _last_border(data, text.border)
        if cut is None:
            carry = data
            if len(data) >= read_limit("event_bytes"):
                text.skipped_bytes += len(data) - _TAIL_BYTES
                carry = data[-_TAIL_BYTES:]
            continue
        yield data[: cut[0]]
        if text.ended:
            text.after += b"," + data[cut[1] :] + b"".join(islice(stream, _MOST_CHUNKS_OF_METADATA))
            return
        carry = data[cut[1] :]
    if _EMPTY_LIST.match(carry):
        text.after = carry.partition(b"]")[2]
        return
    border = _last_border(carry, text.border)
    begin = border[1] if border else 0
    # the list closes at the first bracket behind the last border that can be it; then metadata follows
    for end in _END_OF_LIST.finditer(carry, begin):
        piece = carry[begin : end.start() + 1]
        # braces within names mislead this count; then a later bracket, or none, is taken
        if piece.count(b"{") == piece.count(b"}"):
            text.after = carry[end.end(1) :]
            yield carry[: end.start(1)]
            return
    text.cut = True
    if border:
        yield carry[: border[0]]
    yield carry[begin:]


def has_events(path: Path) -> bool:
    """Whether a list of events begins anywhere in the part of a file that may be metadata."""
    text = TraceText()
    _find_list(_read_chunks(path, text), text, MOST_BYTES_OF_METADATA)
    return text.found


def _find_list(stream: Iterator[bytes], text: TraceText, most_bytes: int | None = None) -> bytes:
    """Read up to the first event; what came before is kept as metadata."""
    head, done = b"", 0
    for chunk in stream:
        head += chunk
        done += len(chunk)
        stripped = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if stripped.startswith(b"["):
            text.found = True
            return stripped[1:]
        if found := _LIST_OF_EVENTS.search(head):
            text.before, text.found = head[: found.start()], True
            return head[found.end() :]
        if len(head) > MOST_BYTES_OF_METADATA:
            text.skipped_bytes += len(head) - _TAIL_BYTES
            head = head[-_TAIL_BYTES:]
        if most_bytes and done > most_bytes:
            break
    text.before, text.cut = head, True
    return b""


def _last_border(data: bytes, border: re.Pattern[bytes]) -> tuple[int, int] | None:
    """Where the last event that is surely whole ends, and where the next begins."""
    size = _FIRST_TAIL_BYTES
    while True:
        found = deque(border.finditer(data, max(0, len(data) - size)), maxlen=1)
        if found:
            return found[0].start() + 1, found[0].end()
        if size >= len(data):
            return None
        size *= 8


def split_events(data: bytes, border: re.Pattern[bytes]) -> Iterator[bytes]:
    """A batch, event by event, as far as borders tell."""
    begin = 0
    for found in border.finditer(data):
        yield data[begin : found.start() + 1]
        begin = found.end()
    yield data[begin:]


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
    forward: int = msgspec.field(default=-1, name="Fwd thread id")
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
            for found in _LIST_END.finditer(piece):
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
    for part in msgspec.structs.fields(kind):
        given = value.get(part.encode_name)
        if given is not None and part.type is not msgspec.Raw and part.name != "args":
            with suppress(*_DECODE_ERRORS):
                found[part.name] = msgspec.convert(given, part.type, strict=False)
    return found

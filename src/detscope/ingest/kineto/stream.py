"""A trace file as batches of event text, in bounded memory, whatever state the file is in.

The list of events is cut between two events, at places that look like a border. Whether it was one is told
by decoding the batch: a piece that ends inside an event does not decode.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

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

"""A trace file as batches of event text, in bounded memory, whatever state the file is in.

The list of events is cut between two events, at places that look like a border. Whether it was one is told
by decoding the batch: a piece that ends inside an event does not decode.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from detscope.ingest.files import most_unpacked_bytes, open_unpacked
from detscope.limits import limit

CHUNK_BYTES = 1 << 19
MOST_BYTES_OF_METADATA = 1 << 25
_MOST_CHUNKS_OF_METADATA = 16
_TAIL_BYTES = 1 << 16
_FIRST_TAIL_BYTES = 1 << 12
_FIRST_KEYS = {b"ph", b"name", b"cat", b"ts", b"pid", b"tid"}
_LIST_OF_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*"([A-Za-z_]{1,24})"')
_END_OF_LIST = re.compile(rb"\}\s*+(\])\s*+(?:,|\}|$)")
_EMPTY_LIST = re.compile(rb"\s*\]")


@dataclass
class Text:
    """What was found around the events, and what of the file could not be read."""

    before: bytes = b""  # of the object, up to the list of events
    after: bytes = b""
    skipped_bytes: int = 0
    ended: bool = False  # set by who decodes: the list closed within the last batch
    stopped: str = ""  # the limit at which reading ended, where it was not the end of the file
    cut: bool = False  # the file ends within the list, or cannot be unpacked to its end
    found: bool = False  # a list of events begins somewhere
    fraction_digits: bool = False  # times have more digits than a float holds
    border: re.Pattern[bytes] = field(default_factory=lambda: border_pattern(_FIRST_KEYS))


def border_pattern(keys: set[bytes]) -> re.Pattern[bytes]:
    """The end of one event and the begin of the next; events begin with one of few keys."""
    alternatives = b"|".join(sorted(re.escape(key) for key in keys))
    return re.compile(rb'\}\s*+,\s*+(?=\{\s*+"(?:' + alternatives + rb')")')


def chunks(path: Path, text: Text) -> Iterator[bytes]:
    """The file's bytes, as far as they can be unpacked and are not beyond what its size can mean."""
    done, most = 0, most_unpacked_bytes(path)
    with open_unpacked(path) as file:
        while True:
            try:
                chunk = file.read(CHUNK_BYTES)
            except (EOFError, zlib.error, gzip.BadGzipFile):
                text.cut = True
                yield from _what_is_left(path, done)
                return
            if not chunk:
                return
            done += len(chunk)
            yield chunk
            if done > most:
                text.stopped = "recording_ratio"
                return


def _what_is_left(path: Path, done: int) -> Iterator[bytes]:
    """The bytes between the last whole chunk and the place where unpacking fails."""
    with gzip.open(path, "rb") as again:
        position = 0
        try:
            while piece := again.read1(1 << 14):
                position += len(piece)
                if position > done:
                    yield piece[max(0, len(piece) - (position - done)) :]
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return


def batches(path: Path, text: Text) -> Iterator[bytes]:
    """Text of many events each, without the comma between two batches; the last may hold what follows."""
    stream = chunks(path, text)
    carry = _find_list(stream, text)
    _learn(carry, text)
    for chunk in stream:
        data = carry + chunk
        cut = _last_border(data, text.border)
        if cut is None:
            carry = data if len(data) < limit("event_bytes") else _give_up(data, text)
            continue
        yield data[: cut[0]]
        if text.ended:
            text.after += b"," + data[cut[1] :] + b"".join(islice(stream, _MOST_CHUNKS_OF_METADATA))
            return
        carry = data[cut[1] :]
    yield from _last_batches(carry, text)


def has_events(path: Path) -> bool:
    """Whether a list of events begins anywhere in the part of a file that may be metadata."""
    text = Text()
    _find_list(chunks(path, text), text, MOST_BYTES_OF_METADATA)
    return text.found


def _find_list(stream: Iterator[bytes], text: Text, most_bytes: int | None = None) -> bytes:
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


def _learn(carry: bytes, text: Text) -> None:
    """Which key events of this file begin with, and whether their times have digits a float would lose."""
    if found := _FIRST_KEY.match(carry):
        text.border = border_pattern(_FIRST_KEYS | {found.group(1)})
    text.fraction_digits = re.search(rb'"ts"\s*:\s*\d{12,}\.\d', carry[:CHUNK_BYTES]) is not None


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


def _give_up(data: bytes, text: Text) -> bytes:
    text.skipped_bytes += len(data) - _TAIL_BYTES
    return data[-_TAIL_BYTES:]


def _last_batches(carry: bytes, text: Text) -> Iterator[bytes]:
    """The rest of the list; from its end on it is metadata again."""
    if _EMPTY_LIST.match(carry):
        text.after = carry.partition(b"]")[2]
        return
    end = _end_of_list(carry, text.border)
    if end is None:
        text.cut = True
        cut = _last_border(carry, text.border)
        if cut:
            yield carry[: cut[0]]
            carry = carry[cut[1] :]
        yield carry
        return
    text.after = carry[end + 1 :]
    yield carry[:end]


def _end_of_list(carry: bytes, border: re.Pattern[bytes]) -> int | None:
    """Where the list closes: the first closing bracket behind the last border that can be it."""
    last = _last_border(carry, border)
    for found in _END_OF_LIST.finditer(carry, last[1] if last else 0):
        piece = carry[last[1] if last else 0 : found.start() + 1]
        # braces within names mislead this count; then a later bracket, or none, is taken
        if piece.count(b"{") == piece.count(b"}"):
            return found.start(1)
    return None


def pieces(data: bytes, border: re.Pattern[bytes]) -> Iterator[bytes]:
    """A batch, event by event, as far as borders tell."""
    begin = 0
    for found in border.finditer(data):
        yield data[begin : found.start() + 1]
        begin = found.end()
    yield data[begin:]

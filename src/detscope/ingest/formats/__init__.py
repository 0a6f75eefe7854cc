"""Which reader takes which file: by content, never by name. A new format is one file and one line here."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from detscope.errors import InputError
from detscope.ingest.sink import HEAD_BYTES, Format

# a reader's name for people, its module, and what its files have at least: other modules are not imported;
# the first whose `sniff` says yes takes the file
READERS = (
    ("Nsight Systems export", "detscope.ingest.nsys.reader", re.compile(rb"\ASQLite")),
    (
        "memory snapshot",
        "detscope.ingest.snapshot.reader",
        re.compile(rb"\A\x80|\A[^<]{0,99}<|\"segments\"|\"total_size\""),
    ),
    ("memory timeline", "detscope.ingest.formats.memory_timeline", re.compile(rb"\A\s*+\[\s*+\[")),
    ("Nsight Compute listing", "detscope.ingest.ncu.reader", re.compile(rb"\A[^{\[]")),
    ("Kineto / Chrome trace", "detscope.ingest.kineto.reader", re.compile(b"")),
)

GZIP_MAGIC = b"\x1f\x8b"


def formats(head: bytes) -> Iterator[Format]:
    """The formats that a file with this head may have, in the order in which they are tried."""
    for name, module, needed in READERS:
        if needed.search(head):
            reader = import_module(module)
            yield Format(name, reader.sniff, reader.read)


def read_head(path: Path, size: int = HEAD_BYTES) -> bytes:
    """The first bytes of a file, unpacked where it is packed with gzip."""
    try:
        with path.open("rb") as file:
            head = file.read(size)
        if not head.startswith(GZIP_MAGIC):
            return head
        with gzip.open(path, "rb") as unpacked:
            return _read_some(unpacked, size)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}", "check the path and its rights"
        ) from error


def _read_some(file: gzip.GzipFile, size: int) -> bytes:
    """What can be unpacked of a file that may be damaged or cut."""
    pieces: list[bytes] = []
    try:
        while size > 0 and (piece := file.read1(min(size, 8192))):
            pieces.append(piece)
            size -= len(piece)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        pass
    return b"".join(pieces)


def find_format(path: Path) -> Format:
    """The format of a file."""
    if path.is_dir():
        raise InputError(f"{path} is a folder", "give the recorded files themselves")
    head = read_head(path)
    if not head:
        raise InputError(f"{path} is empty", "record or copy it again")
    for candidate in formats(head):
        if candidate.sniff(head, path):
            return candidate
    known = ", ".join(name for name, *_ in READERS)
    raise InputError(f"{path} is of no format that can be read", f"known are: {known}")

"""Which reader takes which file: by content, never by name. A new format is one file and one line here."""

from __future__ import annotations

import gzip
import zlib
from importlib import import_module
from pathlib import Path

from detscope.errors import InputError
from detscope.ingest.contract import HEAD_BYTES, Format

# a reader's name for people, and its module; the first whose `sniff` says yes takes the file
READERS = (
    ("Nsight Systems export", "detscope.ingest.nsys"),
    ("memory snapshot", "detscope.ingest.snapshot"),
    ("memory timeline", "detscope.ingest.memory_timeline"),
    ("Nsight Compute listing", "detscope.ingest.ncu"),
    ("Kineto / Chrome trace", "detscope.ingest.kineto"),
)

GZIP_MAGIC = b"\x1f\x8b"


def formats() -> tuple[Format, ...]:
    """All formats, in the order in which they are tried."""
    found = []
    for name, module in READERS:
        reader = import_module(module)
        found.append(Format(name, reader.sniff, reader.read))
    return tuple(found)


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
    for candidate in formats():
        if candidate.sniff(head, path):
            return candidate
    known = ", ".join(name for name, _ in READERS)
    raise InputError(f"{path} is of no format that can be read", f"known are: {known}")

"""Recorded files that are packed: how much of them is read follows from their size on disk."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import IO

import psutil

from detscope.limits import limit
from detscope.machine.limits import memory_limit_bytes

_SMALL_BYTES = 64 << 20  # unpacked: below it the ratio is no matter
_SHARE_OF_MEMORY = 0.6


def is_packed(path: Path) -> bool:
    """Whether a file is packed with gzip."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def open_unpacked(path: Path) -> IO[bytes]:
    """The file, unpacked where it is packed with gzip."""
    return gzip.open(path, "rb") if is_packed(path) else path.open("rb")  # type: ignore[return-value]


def most_unpacked_bytes(path: Path) -> int:
    """How much of a file is read: all of a plain one; of a packed one what its size can mean."""
    most = limit("recording_bytes")
    if not is_packed(path):
        return most
    return min(most, max(_SMALL_BYTES, limit("recording_ratio") * path.stat().st_size))


def most_events(path: Path) -> tuple[int, str]:
    """How many events are kept, and the limit that says so."""
    each = limit("event_memory_bytes")
    free = min(psutil.virtual_memory().available, memory_limit_bytes() or 1 << 62)
    limits = [(limit("recording_events"), "recording_events")]
    limits.append((int(_SHARE_OF_MEMORY * free) // each, "event_memory_bytes"))
    if is_packed(path):
        worth = path.stat().st_size // limit("packed_event_bytes")
        limits.append((max(limit("packed_events"), worth), "packed_events"))
    return min(limits)

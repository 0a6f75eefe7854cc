"""Recorded files, packed or not: their bytes in pieces, and how much of them is read."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import psutil

from detscope.limits import over_limit, read_limit
from detscope.machine.limits import memory_limit_bytes

_SMALL_BYTES = 64 << 20  # unpacked: below it the ratio is no matter
_SHARE_OF_MEMORY = 0.6


class RecordedFile:
    """A file, unpacked where gzip packed it; after reading, `error` says why a packed one ended early."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: Exception | None = None

    @cached_property
    def is_packed(self) -> bool:
        """Whether it is packed with gzip."""
        with self.path.open("rb") as file:
            return file.read(2) == b"\x1f\x8b"

    def read_pieces(self, size: int) -> Iterator[bytes]:
        """Pieces of this size; of a file that is damaged or cut, all that can be unpacked."""
        most, ended = 1 << 13 if self.is_packed else size, False
        with gzip.open(self.path, "rb") if self.is_packed else self.path.open("rb") as file:
            while not ended:
                parts, missing = [], size
                try:
                    # little at a time: what was unpacked within a call that fails is lost
                    while missing and (part := file.read1(min(missing, most))):
                        parts.append(part)
                        missing -= len(part)
                    ended = missing > 0
                except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                    self.error, ended = error, True
                if parts:
                    yield b"".join(parts)

    def read_whole(self) -> bytes:
        """All bytes of a file that is not streamed, as memory snapshots are."""
        whole, unpacked = read_limit("snapshot_bytes"), self.most_bytes
        pieces: list[bytes] = []
        size = 0
        for piece in self.read_pieces(1 << 22):
            pieces.append(piece)
            size += len(piece)
            if size > min(whole, unpacked):
                raise over_limit("snapshot_bytes" if whole <= unpacked else "recording_ratio", self.path.name)
        return b"".join(pieces)

    @property
    def most_bytes(self) -> int:
        """How much is read, unpacked: all of a plain file; of a packed one what its size can mean."""
        most = read_limit("recording_bytes")
        if not self.is_packed:
            return most
        return min(most, max(_SMALL_BYTES, read_limit("recording_ratio") * self.path.stat().st_size))

    def find_event_limit(self) -> tuple[int, str]:
        """How many events are kept, and the limit that says so."""
        free = min(psutil.virtual_memory().available, memory_limit_bytes() or 1 << 62)
        limits = [
            (read_limit("recording_events"), "recording_events"),
            (int(_SHARE_OF_MEMORY * free) // read_limit("event_memory_bytes"), "event_memory_bytes"),
        ]
        if self.is_packed:
            worth = self.path.stat().st_size // read_limit("packed_event_bytes")
            limits.append((max(read_limit("packed_events"), worth), "packed_events"))
        return min(limits)

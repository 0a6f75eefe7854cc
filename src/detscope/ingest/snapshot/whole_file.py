"""A whole file in memory, unpacked, with a limit; files of memory are read whole, not streamed."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from detscope.ingest.files import is_packed, most_unpacked_bytes
from detscope.limits import limit, over_limit

_PIECE = 1 << 22


def read_whole(path: Path) -> tuple[bytes, bool]:
    """The bytes of a file, and whether it is cut (packed, and the end is missing or damaged)."""
    packed = is_packed(path)
    whole, unpacked = limit("snapshot_bytes"), most_unpacked_bytes(path)
    pieces: list[bytes] = []
    size, cut = 0, False
    with gzip.open(path, "rb") if packed else path.open("rb") as source:
        while True:
            try:
                piece = source.read(_PIECE) if not packed else source.read1(_PIECE)
            except (EOFError, zlib.error, gzip.BadGzipFile):
                cut = True
                break
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
            if size > min(whole, unpacked):
                raise over_limit("snapshot_bytes" if whole <= unpacked else "recording_ratio", path.name)
    return b"".join(pieces), cut

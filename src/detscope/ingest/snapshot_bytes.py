"""A whole file in memory, unpacked, with a limit; files of memory are read whole, not streamed."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from detscope.errors import InputError

MAX_BYTES = 2 << 30
_PIECE = 1 << 22


def read_whole(path: Path, limit: int = MAX_BYTES) -> tuple[bytes, bool]:
    """The bytes of a file, and whether it is cut (packed, and the end is missing or damaged)."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
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
            if size > limit:
                raise InputError(
                    f"{path.name} holds more than {limit >> 20} MiB", "record a shorter stretch of the run"
                )
    return b"".join(pieces), cut

"""Which format a file has: by content, never by name. A new format is one file here, with a `PART`."""

from __future__ import annotations

from pathlib import Path

from detscope.errors import InputError
from detscope.ingest.files import RecordedFile
from detscope.ingest.sink import Format
from detscope.parts import parts_of

HEAD_BYTES = 65536


def find_format(path: Path) -> Format:
    """The first format that recognizes a file by its first bytes, unpacked where it is packed."""
    if path.is_dir():
        raise InputError(f"{path} is a folder", "give the recorded files themselves")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a pipe or a device", "give a file: it is read more than once")
    try:
        head = next(RecordedFile(path).read_pieces(HEAD_BYTES), b"")
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}", "check the path and its rights"
        ) from error
    if not head:
        raise InputError(f"{path} is empty", "record or copy it again")
    formats = parts_of("formats", Format)
    for candidate in formats:
        if candidate.recognize(head, path):
            return candidate
    known = ", ".join(candidate.name for candidate in formats)
    raise InputError(f"{path} is of no format that can be read", f"known are: {known}")

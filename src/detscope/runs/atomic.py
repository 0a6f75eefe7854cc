"""Files that are whole or not there: written aside, synced, renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from detscope.errors import MachineError


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a neighbouring temporary file, sync it, and give it its name."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise storage_error(path, error) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda temporary: _discard(temporary.write_text(text, encoding="utf-8")))


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write a binary file atomically."""
    write_atomically(path, lambda temporary: _discard(temporary.write_bytes(data)))


def storage_error(path: Path, error: OSError) -> MachineError:
    """One clear line for what the file system said."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return MachineError(
            f"no space left while writing {path}", "free some space or choose another --out folder"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return MachineError(
            f"cannot write to {path}: {error.strerror}", "choose a writable folder with --out DIR"
        )
    return MachineError(
        f"cannot write {path}: {error.strerror or error}", "choose another folder with --out DIR"
    )


def _discard(_: int) -> None:
    return None

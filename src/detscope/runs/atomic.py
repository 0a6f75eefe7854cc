"""Files that are whole or not there: written aside, synced, renamed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from detscope.errors import MachineError


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a neighbouring temporary file, sync it, and give it its name.

    Into a device (`/dev/stdout`, `/dev/null`) it is poured: a file in its place would be the device's end.
    """
    if path.parts[:2] in ((os.sep, "dev"), (os.sep, "proc")) and not path.is_file() and not path.is_dir():
        _pour(path, write)
        return
    write_aside(path, write)
    give_name(path)


def _pour(device: Path, write: Callable[[Path], object]) -> None:
    with TemporaryDirectory(prefix="detscope-") as folder:
        aside = Path(folder) / device.name
        write(aside)
        try:
            with aside.open("rb") as source, device.open("r+b", buffering=0) as target:
                shutil.copyfileobj(source, target)
        except OSError as error:
            raise storage_error(device, error) from error


def write_aside(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a neighbouring temporary file; `give_name` makes it the file."""
    with _nothing_left_behind(path) as temporary:
        write(temporary)


def give_name(path: Path) -> None:
    """Sync what was written aside and give it its name; this waits for the disk, not for the processor."""
    with _nothing_left_behind(path) as temporary:
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)


@contextmanager
def fill_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A neighbouring folder to fill; synced and given its name when the block ends well, else gone."""
    aside = _temporary_of(folder)
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        yield aside
        for file in aside.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        old = aside.with_suffix(".old")
        if replace and folder.exists():
            folder.rename(old)
        aside.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise storage_error(folder, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _temporary_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def _nothing_left_behind(path: Path) -> Iterator[Path]:
    temporary = _temporary_of(path)
    try:
        yield temporary
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise storage_error(path, error) from error
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write a binary file atomically."""
    write_atomically(path, lambda temporary: temporary.write_bytes(data))


def storage_error(path: Path, error: OSError) -> MachineError:
    """One clear line for what the file system said."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what, hint = f"no space left while writing {path}", "free some space or choose another --out folder"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        what, hint = f"cannot write to {path}: {error.strerror}", "choose a writable folder with --out DIR"
    else:
        what, hint = f"cannot write {path}: {error.strerror or error}", "choose another folder with --out DIR"
    return MachineError(what, hint)

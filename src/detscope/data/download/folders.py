"""A folder that is there whole or not at all, also when two processes make it at the same moment."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from detscope.errors import InputError, MachineError

# Room that is left free on the disk beside what is about to be written.
DISK_RESERVE_BYTES = 64 * 2**20


def build_folder_once(
    target: Path,
    build: Callable[[Path], None],
    is_complete: Callable[[Path], bool],
    *,
    replace_incomplete: bool,
) -> None:
    """Make `target` by `build(partial folder)` and one rename, unless it is complete.

    A second process waits for the first and then finds the folder. The lock ends with its process,
    and what a killed one left behind is removed by the next.
    """
    if is_complete(target):
        return
    if target.exists() and not replace_incomplete:
        raise InputError(f"{target} is there but not complete", "move it away, or choose another data.root")
    with report_write_errors(target), lock_path(target):
        if is_complete(target):
            return
        partial = target.with_name(f".{target.name}.partial")
        _remove_path(partial)
        try:
            partial.mkdir()
            build(partial)
            _remove_path(target)
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextmanager
def lock_path(path: Path) -> Iterator[None]:
    """Hold the lock that belongs to `path`; it is gone when this process is gone."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        yield


@contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into one line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise MachineError(
                f"disk full while writing {path}", "free some space, or choose another data.root"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            raise MachineError(
                f"cannot write {path}: {error.strerror}", "choose a data.root that can be written"
            ) from error
        raise


def require_free_disk(folder: Path, need_bytes: int, what: str) -> None:
    """Say that the disk is too small before anything is written."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < need_bytes + DISK_RESERVE_BYTES:
        raise MachineError(
            f"{what} needs {need_bytes / 1e6:.0f} MB in {folder}, {free_bytes / 1e6:.0f} MB are free",
            "free some space, or choose another data.root",
        )


def _remove_path(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)

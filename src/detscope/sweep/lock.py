"""One sweep at a time on a store: two would disturb each other's measurements."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from detscope.errors import UsageError
from detscope.runs.atomic import storage_error


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """Hold the store for the block; the file beside it is gone afterwards. A killed holder holds nothing."""
    path = store.with_name(f"{store.name}-lock")
    descriptor = _held(path, store)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _held(path: Path, store: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise storage_error(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # whoever held it may have taken the file away between our two calls
            if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
            os.close(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            raise UsageError(
                f"{store}: another sweep is running on this store", "wait for it, or give --store FILE"
            ) from None

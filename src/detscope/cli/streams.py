"""Standard output and error as they may be: closed, full, a pipe nobody reads, ASCII alone.

What a verb prints goes through here, so that no verb has to think of it. `detscope run` leaves this before
the script begins: its streams are its own.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

BROKEN_PIPE = 141  # as a shell tells of a tool that SIGPIPE ended


class OutputLost(Exception):
    """Standard output takes no more; not an OSError, because rich and click end the process on some."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.nobody_reads = error.errno == errno.EPIPE


class _Descriptor(io.RawIOBase):
    """Writes to a descriptor; the first failure is raised or, where nothing is lost with it, forgotten."""

    def __init__(self, number: int, *, closed: bool, needed: bool) -> None:
        self._number, self._closed, self._needed, self._lost = number, closed, needed, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: Any) -> int:
        while not self._lost:
            try:
                if self._closed:
                    raise OSError(errno.EBADF, os.strerror(errno.EBADF))
                return os.write(self._number, data)
            except BlockingIOError:  # somebody made the terminal non-blocking
                select.select([], [self._number], [])
            except OSError as error:
                self._lost = True
                if self._needed:
                    raise OutputLost(error) from None
        return len(data)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Put both streams behind a guard; a stream that somebody else has replaced stays theirs."""
    closed = _fill_closed_descriptors()
    before = sys.stdout, sys.stderr
    own = before[0] is sys.__stdout__, before[1] is sys.__stderr__
    if own[0]:
        sys.stdout = _guarded(1, before[0], 1 in closed, needed=True)
    if own[1]:
        sys.stderr = _guarded(2, before[1], 2 in closed, needed=False)
    try:
        yield
    finally:
        ours = [stream for stream, mine in zip((sys.stdout, sys.stderr), own, strict=True) if mine]
        sys.stdout, sys.stderr = before
        for stream in reversed(ours):  # standard output last: what it says about itself must not hide errors
            stream.flush()


def _guarded(number: int, before: Any, closed: bool, *, needed: bool) -> io.TextIOWrapper:
    if before is not None:
        before.flush()
    # Python found it closed when it began, and another file may have got its number since
    raw = _Descriptor(number, closed=closed or before is None, needed=needed)
    errors = "replace" if needed else "backslashreplace"
    encoding = getattr(before, "encoding", None)
    # errors go out at once, as Python does it; figures when a line or, into a file, a block is full
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding,
        errors,
        line_buffering=not needed or raw.isatty(),
        write_through=False,
    )


def _fill_closed_descriptors() -> set[int]:
    """Occupy closed standard descriptors: else the next file that is opened becomes standard output."""
    closed = set()
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            closed.add(number)
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    return closed

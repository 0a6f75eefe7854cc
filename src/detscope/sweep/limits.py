"""Limits of one trial inside its own process: memory, and not outliving whoever started it."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from pathlib import Path

from detscope.machine.limits import status_bytes

_DESCRIPTORS = 1024


def limit_memory(limit_bytes: int | None) -> None:
    """Let this process grow by so many bytes and no more; None lifts the limit.

    Counted from what is mapped now, so that torch's own libraries are not part of it; only the soft
    limit moves, so that a process that is used again can be given another one. Not for a process that
    computes on a GPU: its driver maps all of host and device into one address space.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes is None:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        return
    mapped = status_bytes("VmSize")
    if mapped is None:
        raise OSError("cannot limit memory: this system does not tell the size of a process")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + limit_bytes, hard))


def forget_resident_peak() -> bool:
    """Begin to watch for a new peak; False where the system does not let us."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def memory_killer_count() -> int | None:
    """How often the kernel has ended a process for want of memory; None where it does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def end_with_pipe(descriptor: int) -> None:
    """End this whole process group when the other end of a pipe is closed: its owner is gone, however.

    A small process watches, forked before anything is imported: a thread could not run while the trial
    holds the interpreter, and a signal to this process alone would leave its loader workers behind.
    """
    if os.fork():
        os.close(descriptor)
        return
    try:
        os.closerange(0, descriptor)
        os.closerange(descriptor + 1, _DESCRIPTORS)
        while os.read(descriptor, 1):
            pass
    finally:
        os.killpg(0, signal.SIGKILL)

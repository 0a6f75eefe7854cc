"""Trials without torch, in real processes: the network's name says how they end."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from detscope.sweep.trial import serve_requests

FOLDER = "DETSCOPE_TEST_FOLDER"  # of the test that runs the sweep


class OutOfMemoryError(RuntimeError):
    """As torch's own is called."""


def _hang_with_child() -> None:
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    worker.start()
    time.sleep(600)


def _once() -> None:
    mark = Path("was-here")
    if not mark.exists():
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)


def allowed_file() -> Path:
    """Its bytes are permissions, written by the test: beside its folder, whose files it counts."""
    return Path(f"{os.environ[FOLDER]}-allowed")


def allow(batch: int) -> None:
    """Let trials of batches up to this one go on."""
    allowed_file().write_bytes(b"." * batch)


def _begun_file(batch: int) -> Path:
    return Path(f"{os.environ[FOLDER]}-begun-{batch}")


def begun(batch: int) -> int:
    """How many trials of this batch have asked for permission so far."""
    return _begun_file(batch).stat().st_size if _begun_file(batch).exists() else 0


def _wait_for_permission(batch: int) -> None:
    with _begun_file(batch).open("ab") as file:
        file.write(b".")
    while not allowed_file().exists() or allowed_file().stat().st_size < batch:
        time.sleep(0.01)


def work(request: dict[str, Any]) -> dict[str, Any]:
    name, _, argument = request["network"].partition("@")
    batch = request["values"]["batch_size"]
    endings = {
        "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "segfault": lambda: ctypes.string_at(0),
        "abort": os.abort,
        "exit3": lambda: sys.exit(3),
        "raises": lambda: [][batch],
        "hangs": lambda: time.sleep(600),
        "hangs_with_child": _hang_with_child,
        "once": _once,
        "slow": lambda: time.sleep(float(argument)),
        "allowed": lambda: _wait_for_permission(batch),
        "poisoned": _poisoned,
        "prints": lambda: print("x" * 100_000, flush=True),
    }
    if name == "full" and batch >= int(argument):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.")
    if name == "numpy_full":
        raise MemoryError("Unable to allocate 8.00 GiB for an array")
    if name == "device_full":
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    if name in endings:
        endings[name]()
    return {"step_ms": 1.5 * batch, "images_per_s": 1000 / 1.5, "steps": 6, "pid": os.getpid()}


def _poisoned() -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


if __name__ == "__main__":
    serve_requests(work)

"""What this process may use of the machine: cores, memory, shared memory, disk; and whether it ran out.

In a container the machine's totals say little; the control group's limits count.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Literal

import psutil

from detscope.faults import error_text, find_exhausted_memory
from detscope.machine.accelerator import find_accelerator
from detscope.machine.meters import list_used_devices

_CGROUP = Path("/sys/fs/cgroup")
_SHARED_MEMORY = Path("/dev/shm")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?i?b)?", re.IGNORECASE)
_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_LARGEST = 2**62  # beyond it no machine and no system call
# oneDNN, which computes convolutions on a CPU, and the start of a thread say that they failed and not why
_VAGUE_ERRORS = ("could not create a primitive", "could not execute a primitive", "can't start new thread")
# cuBLAS and cuDNN, where there is no room for what they need at their start
_VAGUE_DEVICE_ERRORS = ("CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_NOT_INITIALIZED")
_NOTHING_LEFT_BYTES = 256 << 20


def usable_cores() -> int:
    """Cores this process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota_cores(root: Path = _CGROUP) -> float | None:
    """The container's share of processor time, in cores; None without a quota."""
    words = read_text(root / "cpu.max").split()
    if len(words) != 2:  # control groups of version 1
        words = [read_text(root / f"cpu/cpu.cfs_{name}_us") for name in ("quota", "period")]
    if not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None  # "max" and "-1" both mean unlimited
    return int(words[0]) / int(words[1])


def memory_limit_bytes(root: Path = _CGROUP) -> int | None:
    """The container's memory limit; None where there is none below the machine's memory."""
    text = read_text(root / "memory.max") or read_text(root / "memory/memory.limit_in_bytes")
    if not text.isdigit():
        return None
    limit = int(text)
    return limit if limit < psutil.virtual_memory().total else None


def shared_memory_bytes() -> tuple[int, int] | None:
    """Total and free bytes of /dev/shm, where loader workers hand over batches; None without it."""
    if not _SHARED_MEMORY.is_dir():
        return None
    usage = shutil.disk_usage(_SHARED_MEMORY)
    return usage.total, usage.free


def disk_free_bytes(folder: Path) -> int:
    """Free bytes where `folder` is or, if it does not exist yet, would be created."""
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(existing).free


def status_bytes(name: str) -> int | None:
    """What the kernel counts of this process: VmSize, VmPeak, VmRSS, VmHWM; None where it does not tell."""
    for line in read_text(Path("/proc/self/status")).splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def explain_exhausted_memory(error: BaseException) -> tuple[Literal["host", "device"], str] | None:
    """Which memory ran out and the words that say so, with evidence where they do not; None: it did not."""
    which, text = find_exhausted_memory(error), error_text(error)
    if which is not None:
        return which, text
    if not isinstance(error, RuntimeError | OSError):
        return None
    if any(sign in text for sign in _VAGUE_ERRORS):
        room = least_addresses_left_bytes()
        if room is not None and room <= _NOTHING_LEFT_BYTES:
            room_text = f"the process had come within {room / 1e6:.0f} MB of its limit of addresses"
            return "host", f"{text} ({room_text})"
    if any(sign in text for sign in _VAGUE_DEVICE_ERRORS):
        room = least_device_memory_left_bytes()
        if room is not None and room <= _NOTHING_LEFT_BYTES:
            return "device", f"{text} (the device had {room / 1e6:.0f} MB left)"
    return None


def least_device_memory_left_bytes() -> int | None:
    """Free bytes of the fullest device that this process uses; None where there is none, or it is broken."""
    try:
        free = (find_accelerator(name).read_memory() for name in list_used_devices())
        return min((one.free for one in free if one is not None and one.free is not None), default=None)
    except RuntimeError:  # after an error that stays, a device answers nothing
        return None


def least_addresses_left_bytes() -> int | None:
    """Bytes between this process's limit of addresses and the most it ever had; None without a limit."""
    try:
        import resource  # not on every system
    except ImportError:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    most, now = status_bytes("VmPeak"), status_bytes("VmSize")
    if limit == resource.RLIM_INFINITY or most is None or now is None:
        return None
    return limit - (most if most <= limit else now)  # beyond it: the limit came after that moment


def parse_size(text: object) -> int | None:
    """Bytes of `4GiB`, `500 MB` or a plain number; None where it is not a size."""
    if type(text) is int:
        return text if 0 < text < _LARGEST else None
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    unit = _UNITS.get((match[2] or "b").lower()) if match else None
    if match is None or unit is None:
        return None
    size = float(match[1]) * unit
    return round(size) or None if size < _LARGEST else None


def read_text(path: Path) -> str:
    """What a file of the system says, without blanks around it; nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

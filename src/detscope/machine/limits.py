"""What this process may use of the machine: cores, memory, shared memory, disk.

In a container the machine's totals say little; the control group's limits count.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_SHARED_MEMORY = Path("/dev/shm")


def usable_cores() -> int:
    """Cores this process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota_cores(root: Path = _CGROUP) -> float | None:
    """The container's share of processor time, in cores; None without a quota."""
    version2 = _read(root / "cpu.max").split()
    if len(version2) == 2:
        return _ratio(version2[0], version2[1])
    return _ratio(_read(root / "cpu/cpu.cfs_quota_us"), _read(root / "cpu/cpu.cfs_period_us"))


def memory_limit_bytes(root: Path = _CGROUP) -> int | None:
    """The container's memory limit; None where there is none below the machine's memory."""
    text = _read(root / "memory.max") or _read(root / "memory/memory.limit_in_bytes")
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
    for line in _read(Path("/proc/self/status")).splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _ratio(quota: str, period: str) -> float | None:
    if not (quota.isdigit() and period.isdigit()) or int(period) == 0:
        return None  # "max" and "-1" both mean unlimited
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""

"""The processor's name, clock and governor, and whether this is a container."""

from __future__ import annotations

import platform
from pathlib import Path

import psutil

_CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")


def cpu_model() -> str | None:
    """Marketing name of the processor."""
    for line in _lines(Path("/proc/cpuinfo")):
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model"} and value.strip():
            return value.strip()
    return platform.processor() or None


def cpu_clock() -> dict[str, float | str | None]:
    """Clock now and at most (MHz) and the governor; None where the system does not tell."""
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError):  # virtual machines often hide it
        frequency = None
    governor = _lines(_CPUFREQ / "scaling_governor")
    return {
        "clock_mhz": frequency.current if frequency else None,
        "clock_max_mhz": (frequency.max or None) if frequency else None,
        "governor": governor[0] if governor else None,
    }


def container() -> str | None:
    """Kind of container this process lives in ("docker", "podman", ...); None if none is seen."""
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    for line in _lines(Path("/proc/1/cgroup")):
        for kind in ("kubepods", "docker", "containerd", "lxc"):
            if kind in line:
                return kind
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []

"""What a result depends on besides the code: stored in every `run.json`.

No environment variables, no user or host names, no paths: a run can be shown to anybody. Nothing is imported
for it: versions come from package metadata.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import sys
from pathlib import Path
from typing import Any

import psutil

from detscope.machine.code import describe_code
from detscope.machine.devices import list_gpus
from detscope.machine.limits import cpu_quota_cores, memory_limit_bytes, read_text, usable_cores

PACKAGES = ("detscope", "torch", "torchvision", "numpy", "effdet", "timm", "polars")
_CONTAINERS = {"docker": Path("/.dockerenv"), "podman": Path("/run/.containerenv")}


def gather_facts() -> dict[str, Any]:
    """Versions, processor, memory and devices of this machine; None where it cannot be told."""
    memory = psutil.virtual_memory()
    torch = sys.modules.get("torch")  # asking for thread counts must not load it
    loaded = torch if hasattr(torch, "get_num_threads") else None
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        distribution = None
    return {
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "torch_cuda": torch_cuda_version(),
        "os": {
            "system": platform.system(),
            "release": platform.release(),
            "distribution": distribution,
            "machine": platform.machine(),
        },
        "container": _find_container(),
        "cpu": {
            "model": cpu_model(),
            "physical_cores": psutil.cpu_count(logical=False),
            "logical_cores": psutil.cpu_count(logical=True),
            "usable_cores": usable_cores(),
            "quota_cores": cpu_quota_cores(),
            **cpu_clock(),
        },
        "memory": {
            "total_bytes": memory.total,
            "available_bytes": memory.available,
            "limit_bytes": memory_limit_bytes(),
        },
        "threads": {
            "torch": loaded and loaded.get_num_threads(),
            "torch_interop": loaded and loaded.get_num_interop_threads(),
        },
        "gpus": list_gpus().as_dict(),
        "code": describe_code(),
    }


def package_version(name: str) -> str | None:
    """Installed version of one package; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_cuda_version() -> str | None:
    """CUDA version torch was built for; None for a CPU-only build or without torch.

    Read from torch's version file, because importing torch takes seconds.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = read_text(Path(spec.origin).with_name("version.py"))
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match.group(1) if match else None


def cpu_model() -> str | None:
    """Marketing name of the processor."""
    for line in read_text(Path("/proc/cpuinfo")).splitlines():
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
    governor = read_text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
    return {
        "clock_mhz": frequency.current if frequency else None,
        "clock_max_mhz": (frequency.max or None) if frequency else None,
        "governor": governor or None,
    }


def _find_container() -> str | None:
    """Kind of container this process lives in ("docker", "podman", ...); None if none is seen."""
    for kind, mark in _CONTAINERS.items():
        if mark.exists():
            return kind
    for line in read_text(Path("/proc/1/cgroup")).splitlines():
        for kind in ("kubepods", "docker", "containerd", "lxc"):
            if kind in line:
                return kind
    return None

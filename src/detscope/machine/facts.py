"""What a result depends on besides the code: stored in every `run.json`.

No environment variables, no user or host names, no paths: a run can be shown to anybody.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

import psutil

from detscope.machine.gpus import list_gpus
from detscope.machine.limits import cpu_quota_cores, memory_limit_bytes, usable_cores
from detscope.machine.processor import container, cpu_clock, cpu_model
from detscope.machine.versions import package_versions, torch_cuda_version


def environment() -> dict[str, Any]:
    """Versions, processor, memory and devices of this machine; None where it cannot be told."""
    return {
        "python": platform.python_version(),
        "packages": package_versions(),
        "torch_cuda": torch_cuda_version(),
        "os": _operating_system(),
        "container": container(),
        "cpu": _cpu(),
        "memory": _memory(),
        "threads": _threads(),
        "gpus": list_gpus().as_dict(),
    }


def _operating_system() -> dict[str, str | None]:
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        distribution = None
    return {
        "system": platform.system(),
        "release": platform.release(),
        "distribution": distribution,
        "machine": platform.machine(),
    }


def _cpu() -> dict[str, Any]:
    return {
        "model": cpu_model(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(logical=True),
        "usable_cores": usable_cores(),
        "quota_cores": cpu_quota_cores(),
        **cpu_clock(),
    }


def _memory() -> dict[str, int | None]:
    memory = psutil.virtual_memory()
    return {
        "total_bytes": memory.total,
        "available_bytes": memory.available,
        "limit_bytes": memory_limit_bytes(),
    }


def _threads() -> dict[str, int | None]:
    """Thread counts of torch if this process has loaded it; asking must not load it."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_threads"):
        return {"torch": None, "torch_interop": None}
    return {"torch": torch.get_num_threads(), "torch_interop": torch.get_num_interop_threads()}

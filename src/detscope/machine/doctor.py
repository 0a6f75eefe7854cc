"""What is here, what is missing, what that costs, and what to do about it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from detscope.machine.gpus import Gpus, list_gpus
from detscope.machine.limits import (
    cpu_quota_cores,
    disk_free_bytes,
    memory_limit_bytes,
    shared_memory_bytes,
    usable_cores,
)
from detscope.machine.processor import cpu_clock, cpu_model
from detscope.machine.programs import find_browser, find_nsight, find_program
from detscope.machine.torch_check import TorchCheck, check_torch
from detscope.machine.versions import PACKAGES, package_version, torch_cuda_version

GIB = 1024**3
MATCH_TOPIC = "torch with torchvision"


@dataclass(frozen=True)
class Finding:
    """One thing looked at; `cost` and `remedy` are empty when it is fine."""

    topic: str
    status: Literal["ok", "missing", "warning"]
    value: str
    cost: str = ""
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at everything; imports torch in another process, so it takes some seconds."""
    torch = check_torch()
    gpus = list_gpus()
    return [
        _python(),
        *(_package(name) for name in PACKAGES),
        _match(torch),
        _cuda(torch, gpus),
        _cores(torch),
        _clock(),
        _memory(),
        _shared_memory(),
        _disk(),
        _browser(),
        _nsight("Nsight Systems", "nsys"),
        _nsight("Nsight Compute", "ncu"),
        _program("make", "`make demo` and `make test` do not run", "install the package make"),
        _program("docker", "the container image cannot be built here", "see docs/docker.md"),
    ]


def torch_matches(findings: list[Finding]) -> bool:
    """True if torch and torchvision were found to work together."""
    return any(finding.topic == MATCH_TOPIC and finding.status == "ok" for finding in findings)


def _python() -> Finding:
    return Finding("python", "ok", platform.python_version())


def _package(name: str) -> Finding:
    version = package_version(name)
    if version is None:
        return Finding(name, "missing", "not installed", f"what needs {name} fails", "pip install .")
    return Finding(name, "ok", version)


def _match(torch: TorchCheck) -> Finding:
    if torch.works:
        return Finding(MATCH_TOPIC, "ok", "match: torchvision.ops.nms runs")
    if "torchvision::" in torch.problem:
        remedy = "install both from one index in one command: pip install --force-reinstall torch torchvision"
    else:
        remedy = "see docs/install.md, or start from a fresh environment: make clean demo"
    return Finding(MATCH_TOPIC, "missing", torch.problem, "no model can be built or trained", remedy)


def _cuda(torch: TorchCheck, gpus: Gpus) -> Finding:
    cost = "no device times, utilisation or device memory; CPU runs work"
    if torch.cuda_devices:
        return Finding("CUDA devices", "ok", f"{', '.join(torch.cuda_devices)} (driver {gpus.driver})")
    if not gpus.devices:
        remedy = "with an NVIDIA GPU: install its driver; in a container: start it with --gpus"
        return Finding("CUDA devices", "missing", gpus.reason, cost, remedy)
    names = ", ".join(gpu.name for gpu in gpus.devices)
    build = torch_cuda_version()
    if build is None:
        remedy = "install torch and torchvision from the package index (the CUDA build)"
        return Finding("CUDA devices", "warning", f"{names}, but torch is built without CUDA", cost, remedy)
    value = f"{names} (driver {gpus.driver}), but torch for CUDA {build} cannot use it"
    return Finding("CUDA devices", "warning", value, cost, "update the NVIDIA driver")


def _cores(torch: TorchCheck) -> Finding:
    usable, total, quota = usable_cores(), psutil.cpu_count() or 1, cpu_quota_cores()
    value = f"{usable} of {total} usable, {cpu_model() or 'unknown processor'}"
    if torch.threads:
        value += f"; torch uses {torch.threads} threads"
    if quota is not None and quota < usable:
        cost = "threads beyond the quota are paused in bursts: unsteady times"
        remedy = f"set training.threads to {max(1, int(quota))} or raise the container's CPU limit"
        return Finding("cores", "warning", f"{value}; quota {quota:g}", cost, remedy)
    return Finding("cores", "ok", value)


def _clock() -> Finding:
    clock = cpu_clock()
    governor = clock["governor"]
    value = f"{clock['clock_mhz']:.0f} MHz" if clock["clock_mhz"] else "clock not readable"
    if governor in {"powersave", "ondemand", "conservative"}:
        remedy = "for measuring: cpupower frequency-set -g performance"
        return Finding(
            "CPU clock", "warning", f"{value}, {governor}", "the clock moves with the load", remedy
        )
    return Finding("CPU clock", "ok", f"{value}, governor {governor or 'not readable'}")


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    limit = memory_limit_bytes()
    value = f"{_gib(memory.available)} available of {_gib(memory.total)}"
    if limit is not None:
        value += f", container limit {_gib(limit)}"
    if min(memory.available, limit or memory.available) < 4 * GIB:
        cost = "full-size detectors at batch 2 need about 4 GiB on a CPU"
        return Finding("memory", "warning", value, cost, "use tiny_* models or a smaller batch")
    return Finding("memory", "ok", value)


def _shared_memory() -> Finding:
    shared = shared_memory_bytes()
    cost = "loader workers hand batches over through it; too little stops a run"
    if shared is None:
        return Finding("/dev/shm", "missing", "no such file system", cost, "use --num-workers 0")
    total, free = shared
    value = f"{_gib(free)} free of {_gib(total)}"
    if free < GIB // 2:
        remedy = "in a container: docker run --shm-size 2g; else --num-workers 0"
        return Finding("/dev/shm", "warning", value, cost, remedy)
    return Finding("/dev/shm", "ok", value)


def _disk() -> Finding:
    free = disk_free_bytes(Path())
    value = f"{_gib(free)} free in the current folder"
    if free < 2 * GIB:
        cost = "weights, data sets and traces may not fit"
        return Finding(
            "disk", "warning", value, cost, "free space, or set output.runs and data.root elsewhere"
        )
    return Finding("disk", "ok", value)


def _browser() -> Finding:
    found = find_browser()
    if found is None:
        cost = "no pictures of the report; reports themselves open in any browser"
        return Finding("browser", "missing", "no Chromium", cost, "install the package chromium")
    return Finding("browser", "ok", found.name)


def _nsight(product: str, program: str) -> Finding:
    found = find_nsight(program)
    if found is None:
        cost = f"nothing can be recorded with {product} here"
        return Finding(
            product, "missing", f"{program} not found", cost, "install it from NVIDIA, or put it on PATH"
        )
    return Finding(product, "ok", str(found))


def _program(name: str, cost: str, remedy: str) -> Finding:
    found = find_program((name,))
    if found is None:
        return Finding(name, "missing", "not on PATH", cost, remedy)
    return Finding(name, "ok", str(found))


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"

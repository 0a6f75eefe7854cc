"""What is here, what is missing, what that costs, and what to do about it."""

from __future__ import annotations

import os
import platform
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from detscope.extras import EXTRA_OF, install_hint
from detscope.machine.describe import parse_architecture
from detscope.machine.devices import GpuList, list_gpus
from detscope.machine.facts import PACKAGES, cpu_clock, cpu_model, package_version, torch_cuda_version
from detscope.machine.limits import (
    cpu_quota_cores,
    disk_free_bytes,
    memory_limit_bytes,
    read_text,
    shared_memory_bytes,
    usable_cores,
)
from detscope.machine.probe import TorchDevice, TorchProbe, try_torch
from detscope.machine.programs import find_browser, find_nsight, find_program

GIB = 1024**3
MATCH_TOPIC, DEVICES = "torch with torchvision", "devices"
# the oldest driver for which NVIDIA supports a major version of CUDA, on Linux
_DRIVERS = {"11": 450, "12": 525, "13": 580}
_SYS_ADMIN = 21  # the number of the capability


@dataclass(frozen=True)
class MachineFinding:
    """One thing looked at; `cost` and `remedy` are empty when it is fine."""

    topic: str
    status: Literal["ok", "missing", "warning"]
    value: str
    cost: str = ""
    remedy: str = ""


def examine_machine() -> list[MachineFinding]:
    """Look at everything; imports torch in another process, so it takes some seconds."""
    torch, browser, gpus = try_torch(), find_browser(), list_gpus()
    memory, limit, free = psutil.virtual_memory(), memory_limit_bytes(), disk_free_bytes(Path())
    contained = f", container limit {_in_gib(limit)}" if limit is not None else ""
    return [
        MachineFinding("python", "ok", platform.python_version()),
        *(
            _look_for(
                name,
                package_version(name),
                "not installed",
                f"what needs {name} fails",
                install_hint(EXTRA_OF[name]) if name in EXTRA_OF else "pip install .",
            )
            for name in PACKAGES
        ),
        _judge_match(torch),
        judge_devices(torch, gpus),
        *([driver] if (driver := judge_driver(gpus, torch_cuda_version())) else []),
        _judge_cores(torch),
        _judge_clock(),
        _judge_room(
            "memory",
            f"{_in_gib(memory.available)} available of {_in_gib(memory.total)}{contained}",
            min(memory.available, limit or memory.available) < 4 * GIB,
            "full-size detectors at batch 2 need about 4 GiB on a CPU",
            "use tiny_* models or a smaller batch",
        ),
        _judge_shared_memory(),
        _judge_room(
            "disk",
            f"{_in_gib(free)} free in the current folder",
            free < 2 * GIB,
            "weights, data sets and traces may not fit",
            "free space, or set output.runs and data.root elsewhere",
        ),
        _look_for(
            "browser",
            browser and browser.name,
            "no Chromium",
            "no pictures of the report; reports themselves open in any browser",
            "install the package chromium",
        ),
        judge_compiler(),
        _look_for(
            "Nsight Systems",
            find_nsight("nsys"),
            "nsys not found",
            "nothing can be recorded with Nsight Systems here",
            "install it from NVIDIA, or put it on PATH",
        ),
        judge_counters(find_nsight("ncu")),
        *(
            _look_for(program, find_program((program,)), "not on PATH", cost, remedy)
            for program, cost, remedy in (
                ("make", "`make demo` and `make test` do not run", "install the package make"),
                ("docker", "the container image cannot be built here", "see docs/docker.md"),
            )
        ),
    ]


def torch_matches(findings: list[MachineFinding]) -> bool:
    """True if torch and torchvision were found to work together."""
    return any(finding.topic == MATCH_TOPIC and finding.status == "ok" for finding in findings)


def _look_for(topic: str, found: str | Path | None, absent: str, cost: str, remedy: str) -> MachineFinding:
    if found is None:
        return MachineFinding(topic, "missing", absent, cost, remedy)
    return MachineFinding(topic, "ok", str(found))


def _judge_match(torch: TorchProbe) -> MachineFinding:
    if not torch.problem and torch.nms_kept == (0, 2):
        return MachineFinding(MATCH_TOPIC, "ok", "match: torchvision.ops.nms runs")
    problem = torch.problem or f"torchvision.ops.nms gave a wrong answer: {torch.nms_kept}"
    if package_version("torch") is None:
        remedy = install_hint("torch")
    elif "torchvision::" in problem:
        remedy = "install both from one index in one command: pip install --force-reinstall torch torchvision"
    else:
        remedy = "see docs/install.md, or start from a fresh environment: make clean demo"
    return MachineFinding(MATCH_TOPIC, "missing", problem, "no model can be built or trained", remedy)


def judge_devices(torch: TorchProbe, gpus: GpuList) -> MachineFinding:
    """Whether there is a device, and whether it computes what the CPU computes."""
    cost = "no device times, utilisation or device memory; CPU runs work"
    if torch.devices:
        told = [_judge_device(torch, one) for one in torch.devices]
        driver = f" (driver {gpus.driver})" if gpus.driver else ""
        value = "; ".join(text for text, _ in told) + driver
        remedy = next((remedy for _, remedy in told if remedy), "")
        if not remedy:
            return MachineFinding(DEVICES, "ok", value)
        return MachineFinding(DEVICES, "warning", value, "what runs there fails or is wrong", remedy)
    build = torch_cuda_version()
    if not gpus.devices:
        wanted = _write_wanted(build, torch)
        remedy = f"with an NVIDIA GPU: install its driver{wanted}; in a container: start it with --gpus"
        return MachineFinding(DEVICES, "missing", gpus.reason, cost, remedy)
    names = ", ".join(
        f"{gpu.name}{f' (capability {gpu.capability})' if gpu.capability else ''}" for gpu in gpus.devices
    )
    if build is None:
        remedy = "install torch and torchvision from the package index (the CUDA build)"
        return MachineFinding(DEVICES, "warning", f"{names}, but torch is built without CUDA", cost, remedy)
    value = f"{names}, driver {gpus.driver}, but torch for CUDA {build} cannot use it"
    remedy = f"this torch wants a driver{_write_wanted(build, torch)}; or install torch for an older CUDA"
    return MachineFinding(DEVICES, "warning", value, cost, remedy)


def _judge_device(torch: TorchProbe, one: TorchDevice) -> tuple[str, str]:
    """What is said of a device, and what to do about it where it is not fine."""
    named = f"{one.device}: {one.name}" + (f", capability {one.capability}" if one.capability else "")
    if not torch.runs_on(one):
        known = ", ".join(torch.built_for)
        return f"{named}, for which this torch is not built ({known})", (
            "install a torch whose torch.cuda.get_arch_list() has it: wheels for CUDA 13 begin at capability"
            " 7.5, those for CUDA 12 earlier"
        )
    if one.problem:
        return (
            f"{named}, where a small product failed: {one.problem}",
            "try it after a restart of the machine",
        )
    if not one.right:
        return f"{named}, which computed something else than the CPU", "do not trust its results: test it"
    return f"{named}: computes what the CPU computes", ""


def _write_wanted(build: str | None, torch: TorchProbe) -> str:
    """As far as it is known: ` 580 or newer and a GPU of capability 7.5 or newer (torch for CUDA 13.2)`."""
    oldest = _DRIVERS.get((build or "").partition(".")[0])
    if oldest is None:
        return ""
    capabilities = [one for name in torch.built_for if (one := parse_architecture(name)) is not None]
    reach = " and a GPU of capability {}.{} or newer".format(*min(capabilities)) if capabilities else ""
    return f" {oldest} or newer{reach} (torch for CUDA {build})"


def judge_driver(gpus: GpuList, build: str | None) -> MachineFinding | None:
    """Whether NVIDIA's driver is new enough for torch's CUDA; None where there is nothing to compare."""
    oldest = _DRIVERS.get((build or "").partition(".")[0])
    if oldest is None or not gpus.driver:
        return None
    value = f"{gpus.driver}; torch for CUDA {build} wants {oldest} or newer"
    major = gpus.driver.partition(".")[0]
    if not major.isdigit() or int(major) >= oldest:
        return MachineFinding("NVIDIA driver", "ok", value)
    remedy = f"update the driver to {oldest} or newer, or install torch for an older CUDA"
    return MachineFinding("NVIDIA driver", "warning", value, "CUDA does not start", remedy)


def judge_compiler(include: Path | None = None) -> MachineFinding:
    """torch.compile compiles C when it runs, on a GPU against Python's own headers."""
    named = os.environ.get("CC")
    found = find_program((named,) if named else ("cc", "gcc", "clang"))
    cost = "torch.compile fails; what runs without it does not need one"
    if found is None:
        return MachineFinding(
            "C compiler", "missing", f"no {named or 'cc, gcc or clang'}", cost, "install the package gcc"
        )
    headers = (include or Path(sysconfig.get_path("include"))) / "Python.h"
    if headers.exists():
        return MachineFinding("C compiler", "ok", f"{found}, with Python.h")
    remedy = "install the package python3-dev of this Python"
    return MachineFinding("C compiler", "warning", f"{found}, but no {headers}", f"on a GPU {cost}", remedy)


def judge_counters(ncu: Path | None, root: Path = Path("/")) -> MachineFinding:
    """Nsight Compute, and whether this user may read the GPU's counters."""
    finding = _look_for(
        "Nsight Compute",
        ncu,
        "ncu not found",
        "nothing can be recorded with Nsight Compute here",
        "install it from NVIDIA, or put it on PATH",
    )
    restricted = "RmProfilingAdminOnly: 1" in read_text(root / "proc/driver/nvidia/params")
    granted = re.search(r"^CapEff:\s*([0-9a-f]+)$", read_text(root / "proc/self/status"), re.MULTILINE)
    allowed = granted is not None and int(granted[1], 16) >> _SYS_ADMIN & 1
    if ncu is None or not restricted or allowed:
        return finding
    remedy = (
        "the driver's option NVreg_RestrictProfilingToAdminUsers=0 allows everybody; else run as root, in a"
        " container with --cap-add=SYS_ADMIN"
    )
    value = f"{ncu}, but the driver lets only administrators read counters"
    return MachineFinding("Nsight Compute", "warning", value, "ncu ends with ERR_NVGPUCTRPERM", remedy)


def _judge_cores(torch: TorchProbe) -> MachineFinding:
    usable, total, quota = usable_cores(), psutil.cpu_count() or 1, cpu_quota_cores()
    value = f"{usable} of {total} usable, {cpu_model() or 'unknown processor'}"
    if torch.threads:
        value += f"; torch uses {torch.threads} threads"
    if quota is None or quota >= usable:
        return MachineFinding("cores", "ok", value)
    cost = "threads beyond the quota are paused in bursts: unsteady times"
    remedy = f"set training.threads to {max(1, int(quota))} or raise the container's CPU limit"
    return MachineFinding("cores", "warning", f"{value}; quota {quota:g}", cost, remedy)


def _judge_clock() -> MachineFinding:
    clock = cpu_clock()
    governor = clock["governor"]
    value = f"{clock['clock_mhz']:.0f} MHz" if clock["clock_mhz"] else "clock not readable"
    if governor not in {"powersave", "ondemand", "conservative"}:
        return MachineFinding("CPU clock", "ok", f"{value}, governor {governor or 'not readable'}")
    remedy = "for measuring: cpupower frequency-set -g performance"
    return MachineFinding(
        "CPU clock", "warning", f"{value}, {governor}", "the clock moves with the load", remedy
    )


def _judge_shared_memory() -> MachineFinding:
    shared = shared_memory_bytes()
    cost = "loader workers hand batches over through it; too little stops a run"
    if shared is None:
        return MachineFinding("/dev/shm", "missing", "no such file system", cost, "use --num-workers 0")
    total, free = shared
    value, remedy = f"{_in_gib(free)} free of {_in_gib(total)}", "in a container: docker run --shm-size 2g"
    return _judge_room("/dev/shm", value, free < GIB // 2, cost, f"{remedy}; else --num-workers 0")


def _judge_room(topic: str, value: str, is_tight: bool, cost: str, remedy: str) -> MachineFinding:
    if is_tight:
        return MachineFinding(topic, "warning", value, cost, remedy)
    return MachineFinding(topic, "ok", value)


def _in_gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"

"""What is here, what is missing, what that costs, and what to do about it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from detscope.extras import EXTRA_OF, install_hint
from detscope.machine.devices import GpuList, list_gpus
from detscope.machine.facts import PACKAGES, cpu_clock, cpu_model, package_version, torch_cuda_version
from detscope.machine.limits import (
    cpu_quota_cores,
    disk_free_bytes,
    memory_limit_bytes,
    shared_memory_bytes,
    usable_cores,
)
from detscope.machine.programs import find_browser, find_nsight, find_program

GIB = 1024**3
MATCH_TOPIC = "torch with torchvision"
_PROBE = """
import json, warnings
warnings.simplefilter("ignore")
import torch, torchvision
boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
names = [torch.cuda.get_device_name(index) for index in range(count)]
print(json.dumps({"kept": kept, "devices": names, "threads": torch.get_num_threads()}))
"""


@dataclass(frozen=True)
class MachineFinding:
    """One thing looked at; `cost` and `remedy` are empty when it is fine."""

    topic: str
    status: Literal["ok", "missing", "warning"]
    value: str
    cost: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class TorchCheck:
    """How trying torch and torchvision together went."""

    works: bool
    problem: str = ""
    cuda_devices: tuple[str, ...] = ()
    threads: int | None = None


def examine_machine() -> list[MachineFinding]:
    """Look at everything; imports torch in another process, so it takes some seconds."""
    torch, browser = check_torch(), find_browser()
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
        _judge_cuda(torch, list_gpus()),
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
        *(
            _look_for(
                product,
                find_nsight(program),
                f"{program} not found",
                f"nothing can be recorded with {product} here",
                "install it from NVIDIA, or put it on PATH",
            )
            for product, program in (("Nsight Systems", "nsys"), ("Nsight Compute", "ncu"))
        ),
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


def check_torch(timeout_s: float = 300.0) -> TorchCheck:
    """Does torch work here together with torchvision? Tried for real, in a process of its own.

    Torchvision's compiled operators load only beside the torch build they were made for, and a
    mismatch shows only at import, as `operator torchvision::nms does not exist`.
    """
    # -P: a file named torch.py in the current folder must not be what is examined.
    command = [sys.executable, "-P", "-c", _PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return TorchCheck(False, f"importing torch and torchvision took more than {timeout_s:.0f} s")
    if done.returncode != 0:
        last_words = done.stderr.strip().rpartition("\n")[2].strip()
        return TorchCheck(False, last_words or f"ended with exit code {done.returncode}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if answer["kept"] != [0, 2]:
        return TorchCheck(False, f"torchvision.ops.nms gave a wrong answer: {answer['kept']}")
    return TorchCheck(True, "", tuple(answer["devices"]), answer["threads"])


def _look_for(topic: str, found: str | Path | None, absent: str, cost: str, remedy: str) -> MachineFinding:
    if found is None:
        return MachineFinding(topic, "missing", absent, cost, remedy)
    return MachineFinding(topic, "ok", str(found))


def _judge_match(torch: TorchCheck) -> MachineFinding:
    if torch.works:
        return MachineFinding(MATCH_TOPIC, "ok", "match: torchvision.ops.nms runs")
    if package_version("torch") is None:
        remedy = install_hint("torch")
    elif "torchvision::" in torch.problem:
        remedy = "install both from one index in one command: pip install --force-reinstall torch torchvision"
    else:
        remedy = "see docs/install.md, or start from a fresh environment: make clean demo"
    return MachineFinding(MATCH_TOPIC, "missing", torch.problem, "no model can be built or trained", remedy)


def _judge_cuda(torch: TorchCheck, gpus: GpuList) -> MachineFinding:
    cost = "no device times, utilisation or device memory; CPU runs work"
    if torch.cuda_devices:
        return MachineFinding("CUDA devices", "ok", f"{', '.join(torch.cuda_devices)} (driver {gpus.driver})")
    if not gpus.devices:
        remedy = "with an NVIDIA GPU: install its driver; in a container: start it with --gpus"
        return MachineFinding("CUDA devices", "missing", gpus.reason, cost, remedy)
    names = ", ".join(gpu.name for gpu in gpus.devices)
    build = torch_cuda_version()
    if build is None:
        remedy = "install torch and torchvision from the package index (the CUDA build)"
        return MachineFinding(
            "CUDA devices", "warning", f"{names}, but torch is built without CUDA", cost, remedy
        )
    value = f"{names} (driver {gpus.driver}), but torch for CUDA {build} cannot use it"
    return MachineFinding("CUDA devices", "warning", value, cost, "update the NVIDIA driver")


def _judge_cores(torch: TorchCheck) -> MachineFinding:
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

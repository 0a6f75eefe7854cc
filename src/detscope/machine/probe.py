"""What torch itself sees, asked in a process of its own: importing it takes seconds and may fail."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from detscope.machine.describe import runs_architecture

# what a driver puts there: NVIDIA's, on boards and on Jetson; AMD's; Intel's and others'; Windows'
_DRIVERS = ("nvidia*", "nvhost*", "nvmap", "nvgpu", "kfd", "dri", "dxg")
_IMPORT = """
import json, warnings
warnings.simplefilter("ignore")
import torch
"""
_LIST = """
try:
    found = torch.accelerator.current_accelerator()
except RuntimeError:
    found = None
kind = found.type if found is not None else None
module = torch.get_device_module(kind) if kind else None
count = module.device_count() if kind and module.is_available() else 0
devices, name_of = [], getattr(module, "get_device_name", lambda index: kind)
for index in range(count):
    one = {"name": name_of(index), "capability": None}
    if kind == "cuda":
        properties = torch.cuda.get_device_properties(index)
        one["capability"] = (
            properties.gcnArchName.partition(":")[0]
            if torch.version.hip
            else "%d.%d" % (properties.major, properties.minor)
        )
    devices.append(one)
told = {
    "kind": kind,
    "devices": devices,
    "built_for": torch.cuda.get_arch_list() if kind == "cuda" else [],
    "runtime": {name: getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")},
    "threads": torch.get_num_threads(),
}
"""
_PRINT = "\nprint(json.dumps(told))\n"
_NMS = """
import torchvision
boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()
"""
# a product, a copy there and back, a wait: what the device computes is what the CPU computes
_RUN = """
told["kept"] = kept
for index, one in enumerate(devices):
    device = kind if kind == "mps" else "%s:%d" % (kind, index)
    one["device"] = device
    try:
        left, right = torch.arange(4096.0).reshape(64, 64) % 7, torch.arange(4096.0).reshape(64, 64) % 5
        there = (left.to(device) @ right.to(device)).cpu()  # small whole numbers: exact in any precision
        torch.accelerator.synchronize(torch.device(device))
        one["right"] = bool(torch.equal(there, left @ right))
    except Exception as error:
        one["problem"] = "%s: %s" % (type(error).__name__, str(error).strip().splitlines()[0])
"""


@dataclass(frozen=True)
class TorchDevice:
    """A device as torch sees it, and what became of a small piece of work on it."""

    name: str
    capability: str | None = None  # of CUDA "8.6", of ROCm "gfx942"
    device: str = ""  # torch's name for it; empty where nothing was tried
    right: bool | None = (
        None  # whether it computed what the CPU computes; None: nothing was tried, or it failed
    )
    problem: str = ""


@dataclass(frozen=True)
class TorchProbe:
    """What torch answered; `problem` is why it did not."""

    problem: str = ""
    kind: str | None = None  # of accelerator that this torch was built for
    devices: tuple[TorchDevice, ...] = ()
    built_for: tuple[str, ...] = ()  # CUDA's architectures, ROCm's names
    cuda: str | None = None  # of CUDA, as torch was built for it
    hip: str | None = None
    threads: int | None = None
    nms_kept: tuple[int, ...] | None = None

    def runs_on(self, device: TorchDevice) -> bool:
        """Whether torch was built for the device's architecture."""
        if self.kind != "cuda" or device.capability is None:
            return True
        return device.capability in self.built_for or (
            self.hip is None and runs_architecture(device.capability, self.built_for)
        )


@cache
def list_torch_devices() -> TorchProbe:
    """torch's accelerator and its devices; nothing is started where no driver is."""
    places = Path("/dev")
    if platform.system() == "Linux" and not any(place for name in _DRIVERS for place in places.glob(name)):
        return TorchProbe()
    return ask_torch(_IMPORT + _LIST)


def try_torch(timeout_s: float = 300.0) -> TorchProbe:
    """torch together with torchvision, and something computed on every device."""
    return ask_torch(_IMPORT + _NMS + _LIST + _RUN, timeout_s)


def ask_torch(code: str, timeout_s: float = 300.0) -> TorchProbe:
    """Run code that fills `told`, in a process of its own."""
    # -P: a file named torch.py in the current folder must not be what is examined.
    command = [sys.executable, "-P", "-c", code + _PRINT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return TorchProbe(f"importing torch and torchvision took more than {timeout_s:.0f} s")
    if done.returncode != 0:
        last_words = done.stderr.strip().rpartition("\n")[2].strip()
        return TorchProbe(last_words or f"ended with exit code {done.returncode}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    kept = told.get("kept")
    return TorchProbe(
        kind=told["kind"],
        devices=tuple(TorchDevice(**one) for one in told["devices"]),
        built_for=tuple(told["built_for"]),
        cuda=told["runtime"]["cuda"],
        hip=told["runtime"]["hip"],
        threads=told["threads"],
        nms_kept=None if kept is None else tuple(kept),
    )

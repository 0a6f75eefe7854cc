"""The device a loop will use, or an error before any work; NVIDIA's devices as the driver knows them."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from detscope.errors import MachineError, UsageError
from detscope.machine.accelerator import find_accelerator
from detscope.machine.meters import explain_nvml, open_nvml

DEVICE_NAME = re.compile(r"(?P<kind>cuda|xpu|mps)(?::(?P<index>\d{1,3}))?")
_BRANDS = {"cuda": "CUDA", "xpu": "XPU", "mps": "MPS"}  # what torch calls a kind, and others do


@dataclass(frozen=True)
class GpuDevice:
    """One device; `index` is the driver's, which CUDA_VISIBLE_DEVICES may renumber for CUDA."""

    index: int
    name: str
    memory_total_bytes: int | None
    capability: str | None = None  # of CUDA: "8.6"


@dataclass(frozen=True)
class GpuList:
    """All devices, the driver's version, and why there are none if there are none."""

    devices: tuple[GpuDevice, ...] = ()
    driver: str | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `run.json`."""
        return asdict(self) | {"devices": [asdict(device) for device in self.devices]}


def list_gpus() -> GpuList:
    """Every NVIDIA device of this machine."""
    nvml, reason = open_nvml()
    if nvml is None:
        return GpuList(reason=reason)
    try:
        devices = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            total_bytes = None  # integrated devices share the system's memory and do not answer
            with suppress(nvml.NVMLError):
                total_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
            capability = None
            with suppress(nvml.NVMLError):
                capability = "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle))
            devices.append(GpuDevice(index, str(nvml.nvmlDeviceGetName(handle)), total_bytes, capability))
        driver = str(nvml.nvmlSystemGetDriverVersion())
        return GpuList(tuple(devices), driver, "" if devices else "the driver reports no device")
    except nvml.NVMLError as error:
        return GpuList(reason=explain_nvml(nvml, error))
    finally:
        nvml.nvmlShutdown()


def resolve_device(name: str) -> str:
    """ "cpu", "cuda:N", "xpu:N" or "mps" for a name, or for "auto"; imports torch unless it is "cpu".

    A device that is asked for and absent raises MachineError; "auto" takes torch's accelerator where one is.
    """
    if name == "cpu":
        return name
    if name == "auto":
        return _find_current()
    asked = DEVICE_NAME.fullmatch(name)
    if asked is None:
        raise UsageError(f"unknown device {name!r}", 'use "auto", "cpu", "cuda", "cuda:0", "xpu" or "mps"')
    kind, index = asked["kind"], int(asked["index"] or 0)
    count, reason = count_devices(kind)
    if count == 0:
        raise MachineError(
            f'device "{name}" asked for, but {reason}', 'use device "cpu" or "auto"; see `detscope doctor`'
        )
    if index >= count:
        hides = "; CUDA_VISIBLE_DEVICES hides devices" if kind == "cuda" else ""
        has = f"{_BRANDS[kind]} has {count} device{'s' if count > 1 else ''} here"
        raise MachineError(
            f'device "{name}" asked for, but {has}',
            f"use {kind}:0{f' to {kind}:{count - 1}' if count > 1 else ''}{hides}",
        )
    return kind if kind == "mps" else f"{kind}:{index}"


def take_device(name: str) -> str:
    """The device of a name, made the current one of this thread: waits, profilers and pinning act on that."""
    device = resolve_device(name)
    find_accelerator(device).use()
    return device


def count_devices(kind: str) -> tuple[int, str]:
    """How many devices of a kind ("cuda", "xpu", "mps") torch can use and, if none, why."""
    import torch

    brand, here = _BRANDS[kind], f"this torch ({torch.__version__})"
    if kind == "mps":
        if not torch.backends.mps.is_built():
            return 0, f"{here} is built without {brand}"
        return (1, "") if torch.backends.mps.is_available() else (0, f"there is no {brand} device")
    builds = ("cuda", "hip") if kind == "cuda" else ("xpu",)  # ROCm's devices are called cuda
    if all(getattr(torch.version, build, None) is None for build in builds):
        return 0, f"{here} is built without {brand}"
    if kind == "cuda" and torch.version.hip is not None:
        brand = "ROCm"
    module = getattr(torch, kind)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")  # torch warns here when the driver is too old for it
        count = module.device_count() if module.is_available() else 0
    if count:
        return count, ""
    if heard:
        return 0, f"{brand} cannot start: {str(heard[0].message).splitlines()[0]}"
    if brand != "CUDA":
        return 0, f"there is no {brand} device that torch can use"
    gpus = list_gpus()
    if not gpus.devices:
        return 0, f"there is no CUDA device ({gpus.reason})"
    return 0, f"torch {torch.__version__} cannot use the {gpus.devices[0].name} (driver {gpus.driver})"


def _find_current() -> str:
    """torch's accelerator, where it is one that is known here and has a device; else the CPU."""
    import torch

    current = None
    with suppress(RuntimeError):  # torch 2.6 raises where it was built for none
        current = torch.accelerator.current_accelerator()
    if current is None or current.type not in _BRANDS or not count_devices(current.type)[0]:
        return "cpu"
    if current.type == "mps":
        return "mps"
    module = getattr(torch, current.type)
    # the one the program has chosen; before it starts the driver, it has chosen none
    return f"{current.type}:{module.current_device() if module.is_initialized() else 0}"

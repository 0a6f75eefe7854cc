"""NVIDIA devices as the driver knows them, and the device a loop will use, or an error before any work."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from detscope.errors import MachineError, UsageError

_CUDA = re.compile(r"cuda(?::(\d{1,3}))?")


@dataclass(frozen=True)
class GpuDevice:
    """One device; `index` is the driver's, which CUDA_VISIBLE_DEVICES may renumber for CUDA."""

    index: int
    name: str
    memory_total_bytes: int | None


@dataclass(frozen=True)
class GpuList:
    """All devices, the driver's version, and why there are none if there are none."""

    devices: tuple[GpuDevice, ...] = ()
    driver: str | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `run.json`."""
        return asdict(self) | {"devices": [asdict(device) for device in self.devices]}


def open_nvml() -> tuple[ModuleType | None, str]:
    """NVML's binding, initialised, or None and the reason; the caller shuts it down. Needs no torch."""
    try:
        import pynvml
    except ImportError:
        return None, "the Python package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, _explain_nvml(pynvml, error)
    return pynvml, ""


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
            devices.append(GpuDevice(index, str(nvml.nvmlDeviceGetName(handle)), total_bytes))
        driver = str(nvml.nvmlSystemGetDriverVersion())
        return GpuList(tuple(devices), driver, "" if devices else "the driver reports no device")
    except nvml.NVMLError as error:
        return GpuList(reason=_explain_nvml(nvml, error))
    finally:
        nvml.nvmlShutdown()


def _explain_nvml(nvml: ModuleType, error: Exception) -> str:
    if getattr(error, "value", None) == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "no NVIDIA driver library (libnvidia-ml.so.1) on this machine"
    return f"NVML: {error}"


def resolve_device(name: str) -> str:
    """ "cpu" or "cuda:N" for "auto", "cpu", "cuda" or "cuda:N"; imports torch unless it is "cpu".

    A device that is asked for and absent raises MachineError; "auto" takes what there is.
    """
    if name == "cpu":
        return name
    if name == "auto":
        return "cuda:0" if _count_cuda()[0] else "cpu"
    asked = _CUDA.fullmatch(name)
    if asked is None:
        raise UsageError(f"unknown device {name!r}", 'use "auto", "cpu", "cuda" or "cuda:0"')
    index = int(asked.group(1) or 0)
    count, reason = _count_cuda()
    if count == 0:
        raise MachineError(
            f'device "{name}" asked for, but {reason}', 'use device "cpu" or "auto"; see `detscope doctor`'
        )
    if index >= count:
        raise MachineError(
            f'device "{name}" asked for, but CUDA has {count} device{"s" if count > 1 else ""} here',
            f"use cuda:0{f' to cuda:{count - 1}' if count > 1 else ''}; CUDA_VISIBLE_DEVICES hides devices",
        )
    return f"cuda:{index}"


def _count_cuda() -> tuple[int, str]:
    """How many CUDA devices torch can use and, if none, why."""
    import torch

    if torch.version.cuda is None:
        return 0, f"this torch ({torch.__version__}) is built without CUDA"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")  # torch warns here when the driver is too old for it
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count:
        return count, ""
    if heard:
        return 0, f"CUDA cannot start: {str(heard[0].message).splitlines()[0]}"
    gpus = list_gpus()
    if not gpus.devices:
        return 0, f"there is no CUDA device ({gpus.reason})"
    return 0, f"torch {torch.__version__} cannot use the {gpus.devices[0].name} (driver {gpus.driver})"

"""NVIDIA devices as the driver knows them, through NVML; needs neither torch nor CUDA."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One device; `index` is the driver's, which CUDA_VISIBLE_DEVICES may renumber for CUDA."""

    index: int
    name: str
    memory_total_bytes: int | None


@dataclass(frozen=True)
class Gpus:
    """All devices, the driver's version, and why there are none if there are none."""

    devices: tuple[Gpu, ...] = ()
    driver: str | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `run.json`."""
        return asdict(self) | {"devices": [asdict(device) for device in self.devices]}


def open_nvml() -> tuple[ModuleType | None, str]:
    """The initialised binding, or None and the reason; the caller shuts it down."""
    try:
        import pynvml
    except ImportError:
        return None, "the Python package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, _explain(pynvml, error)
    return pynvml, ""


def list_gpus() -> Gpus:
    """Every NVIDIA device of this machine."""
    nvml, reason = open_nvml()
    if nvml is None:
        return Gpus(reason=reason)
    try:
        count = nvml.nvmlDeviceGetCount()
        devices = tuple(_describe(nvml, index) for index in range(count))
        driver = str(nvml.nvmlSystemGetDriverVersion())
        return Gpus(devices, driver, "" if devices else "the driver reports no device")
    except nvml.NVMLError as error:
        return Gpus(reason=_explain(nvml, error))
    finally:
        nvml.nvmlShutdown()


def _describe(nvml: ModuleType, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        total_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:  # integrated devices share the system's memory and do not answer
        total_bytes = None
    return Gpu(index, str(nvml.nvmlDeviceGetName(handle)), total_bytes)


def _explain(nvml: ModuleType, error: Exception) -> str:
    if getattr(error, "value", None) == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "no NVIDIA driver library (libnvidia-ml.so.1) on this machine"
    return f"NVML: {error}"

"""Samples NVIDIA devices through NVML: utilisation, memory, clocks, power, throttling, energy."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from detscope.machine.gpus import open_nvml


class Reading(NamedTuple):
    """One value of one source; the sampler adds the time."""

    source: str
    metric: str
    value: float
    unit: str


class _Metric(NamedTuple):
    name: str
    unit: str
    read: Callable[[ModuleType, Any], float]


# What each bit of `throttle_reasons` means; 0 is "runs as fast as asked".
THROTTLE_REASONS = {
    0x001: "idle",
    0x002: "application clocks setting",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clock setting",
    0x200: "board limit",
    0x400: "reliability",
}


def throttle_names(reasons: int) -> list[str]:
    """The reasons set in a `throttle_reasons` value, in words."""
    return [name for bit, name in THROTTLE_REASONS.items() if reasons & bit]


def _temperature(nvml: ModuleType, handle: Any) -> float:
    try:
        return float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    except nvml.NVMLError_FunctionNotFound:  # withdrawn by newer drivers for the versioned call
        return float(nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU))


def _throttle_reasons(nvml: ModuleType, handle: Any) -> float:
    try:
        return float(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError_FunctionNotFound:  # the call's name before driver 535
        return float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


_METRICS = (
    _Metric("utilization_percent", "%", lambda n, h: float(n.nvmlDeviceGetUtilizationRates(h).gpu)),
    _Metric("memory_utilization_percent", "%", lambda n, h: float(n.nvmlDeviceGetUtilizationRates(h).memory)),
    _Metric("memory_used_bytes", "bytes", lambda n, h: float(n.nvmlDeviceGetMemoryInfo(h).used)),
    _Metric("sm_clock_mhz", "MHz", lambda n, h: float(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM))),
    _Metric("memory_clock_mhz", "MHz", lambda n, h: float(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM))),
    _Metric("power_watts", "W", lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1000.0),
    _Metric("temperature_celsius", "°C", _temperature),
    _Metric("throttle_reasons", "bits", _throttle_reasons),
    _Metric("energy_joules", "J", lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h) / 1000.0),
)


class NvmlSampler:
    """Reads every device on each call; without a device it reads nothing and `notes` says why.

    `gpu:N` counts as the driver does, which CUDA_VISIBLE_DEVICES may renumber for CUDA. Energy is
    the device's running total. What a device does not support is noted once and not asked again.
    """

    name = "gpu"

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        self._metrics: dict[int, list[_Metric]] = {}
        self._handles: dict[int, Any] = {}
        self._nvml, reason = open_nvml()
        if self._nvml is None:
            self.notes["gpu"] = reason
            return
        try:
            self._find_devices(self._nvml)
        except self._nvml.NVMLError as error:
            self.notes["gpu"] = f"NVML: {error}"

    def _find_devices(self, nvml: ModuleType) -> None:
        count = nvml.nvmlDeviceGetCount()
        if count == 0:
            self.notes["gpu"] = "the driver reports no device"
        for index in range(count):
            try:
                self._handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
                self._metrics[index] = list(_METRICS)
            except nvml.NVMLError as error:
                self.notes[f"gpu:{index}"] = f"NVML: {error}"

    def read(self) -> list[Reading]:
        """One reading per device and metric."""
        readings: list[Reading] = []
        if self._nvml is not None:
            for index in list(self._handles):
                readings += self._read_device(self._nvml, index)
        return readings

    def _read_device(self, nvml: ModuleType, index: int) -> list[Reading]:
        readings = []
        for metric in list(self._metrics[index]):
            try:
                value = metric.read(nvml, self._handles[index])
            except nvml.NVMLError as error:
                if _is_gone(nvml, error):
                    self.notes[f"gpu:{index}"] = f"no more readings: {error}"
                    del self._handles[index]
                    break
                self.notes[f"gpu:{index} {metric.name}"] = str(error)
                self._metrics[index].remove(metric)
                continue
            readings.append(Reading(f"gpu:{index}", metric.name, value, metric.unit))
        return readings

    def close(self) -> None:
        """Give the driver's session back; reading afterwards gives nothing."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None


def _is_gone(nvml: ModuleType, error: Exception) -> bool:
    """True for errors after which the device answers nothing any more."""
    return getattr(error, "value", None) in {
        nvml.NVML_ERROR_GPU_IS_LOST,
        nvml.NVML_ERROR_RESET_REQUIRED,
        nvml.NVML_ERROR_UNINITIALIZED,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
    }

"""What a device's driver says of it while it works: use, memory, clocks, power; by NVML, or AMD SMI on ROCm.

torch numbers devices as CUDA_VISIBLE_DEVICES lets it, the driver's libraries as boards are plugged in: they
meet by the device's UUID. An instance of a divided board (MIG) has a UUID of its own. Nothing here starts a
driver: a device is looked for once the program has started it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any

# name, unit, how it is read
Metric = tuple[str, str, Callable[[], float]]
# errors of NVML's after which a device answers nothing any more
_GONE = ("GPU_IS_LOST", "RESET_REQUIRED", "UNINITIALIZED", "DRIVER_NOT_LOADED")
NOT_STARTED = "the program has not started the driver"
_OF_BOARD = "counted for the whole board, of which this is one instance"


class DeviceMeter:
    """One device; what it does not support is noted once and not asked for again."""

    def __init__(self, device: str, metrics: Iterable[Metric], errors: tuple[type[Exception], ...]) -> None:
        self.device = device  # torch's name: cuda:1
        self.notes: dict[str, str] = {}  # by metric, or "" for all of them: why there are no values
        self._metrics = list(metrics)
        self._errors = errors

    def read_values(self) -> list[tuple[str, float, str]]:
        """Name, value and unit of everything that can be read now."""
        found = []
        for metric in list(self._metrics):
            name, unit, read = metric
            try:
                found.append((name, read(), unit))
            except self._errors as error:
                if self.is_lost(error):
                    self.notes[""] = f"no more readings: {error}"
                    self._metrics.clear()
                    break
                self.notes[name] = str(error)
                self._metrics.remove(metric)
        return found

    def read_facts(self) -> dict[str, Any]:
        """What does not change: uuid, driver, largest clock, power limit; only what is known."""
        return {}

    def is_lost(self, error: Exception) -> bool:  # noqa: ARG002
        """Whether the device itself is gone, and not only this figure."""
        return False

    def close(self) -> None:
        """Give the library's session back."""


def open_meter(device: str) -> tuple[DeviceMeter | None, str]:
    """The meter of one of torch's devices, or None and the reason; the caller closes it."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return None, f"neither NVML nor AMD SMI knows a device of kind {kind}"
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None, NOT_STARTED
    uuid = getattr(torch.cuda.get_device_properties(int(number or 0)), "uuid", None)
    if uuid is None:
        return None, f"torch {torch.__version__} does not tell a device's UUID"
    return _open_amd(device, str(uuid)) if torch.version.hip else _open_nvidia(device, str(uuid))


def list_used_devices() -> list[str]:
    """Devices on which this process has memory; none where it has not started a driver."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return []
    return [
        f"cuda:{index}" for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)
    ]


# ---- NVIDIA


def open_nvml() -> tuple[ModuleType | None, str]:
    """NVML's binding, initialised, or None and the reason; the caller shuts it down. Needs no torch."""
    try:
        import pynvml
    except ImportError:
        return None, "the Python package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, explain_nvml(pynvml, error)
    return pynvml, ""


def explain_nvml(nvml: ModuleType, error: Exception) -> str:
    """One line on what NVML could not do."""
    if getattr(error, "value", None) == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "no NVIDIA driver library (libnvidia-ml.so.1) on this machine"
    return f"NVML: {error}"


def _open_nvidia(device: str, uuid: str) -> tuple[DeviceMeter | None, str]:
    nvml, reason = open_nvml()
    if nvml is None:
        return None, reason
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    for prefix in ("GPU-", "MIG-"):
        with suppress(nvml.NVMLError):
            return NvmlMeter(device, nvml, nvml.nvmlDeviceGetHandleByUUID(prefix + bare)), ""
    nvml.nvmlShutdown()
    return None, f"NVML knows no device with the UUID {bare}"


class NvmlMeter(DeviceMeter):
    """NVIDIA's device, or one instance of a divided one: its own memory, the board's clocks."""

    def __init__(self, device: str, nvml: ModuleType, handle: Any) -> None:
        self._nvml = nvml
        self._board, self._handle = _find_instance(nvml, handle)
        own, board = self._handle, self._board
        divided = own is not board

        def call(name: str, *args: Any, older: str = "") -> Callable[[], Any]:
            def read() -> Any:
                try:
                    return getattr(nvml, name)(*args)
                except nvml.NVMLError_FunctionNotFound:  # drivers differ in which of two names they have
                    if not older:
                        raise
                    return getattr(nvml, older)(*args)

            return read

        def scale(read: Callable[[], Any], by: float = 1.0) -> Callable[[], float]:
            return lambda: float(read()) * by

        use = call("nvmlDeviceGetUtilizationRates", own)
        reasons = call(
            "nvmlDeviceGetCurrentClocksEventReasons",
            board,
            older="nvmlDeviceGetCurrentClocksThrottleReasons",  # before driver 535
        )
        temperature = call(
            "nvmlDeviceGetTemperature", board, nvml.NVML_TEMPERATURE_GPU, older="nvmlDeviceGetTemperatureV"
        )
        metrics: list[Metric] = [
            ("utilization_percent", "%", lambda: float(use().gpu)),
            ("memory_utilization_percent", "%", lambda: float(use().memory)),
            ("memory_used_bytes", "bytes", lambda: float(nvml.nvmlDeviceGetMemoryInfo(own).used)),
            ("sm_clock_mhz", "MHz", scale(call("nvmlDeviceGetClockInfo", board, nvml.NVML_CLOCK_SM))),
            ("memory_clock_mhz", "MHz", scale(call("nvmlDeviceGetClockInfo", board, nvml.NVML_CLOCK_MEM))),
            ("power_watts", "W", scale(call("nvmlDeviceGetPowerUsage", board), 1e-3)),
            ("temperature_celsius", "°C", scale(temperature)),
            ("throttle_reasons", "bits", scale(reasons)),
            ("energy_joules", "J", scale(call("nvmlDeviceGetTotalEnergyConsumption", board), 1e-3)),
        ]
        shared = ("power_watts", "energy_joules") if divided else ()
        super().__init__(device, [one for one in metrics if one[0] not in shared], (nvml.NVMLError,))
        self.notes |= dict.fromkeys(shared, _OF_BOARD)

    def read_facts(self) -> dict[str, Any]:
        nvml, found = self._nvml, {}
        asked: dict[str, Callable[[], Any]] = {
            "uuid": lambda: nvml.nvmlDeviceGetUUID(self._handle),
            "driver": nvml.nvmlSystemGetDriverVersion,
            "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(self._board, nvml.NVML_CLOCK_SM),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(self._board) / 1e3,
        }
        for name, ask in asked.items():
            with suppress(nvml.NVMLError):
                found[name] = ask()
        return found

    def is_lost(self, error: Exception) -> bool:
        codes = {getattr(self._nvml, f"NVML_ERROR_{fault}") for fault in _GONE}
        return getattr(error, "value", None) in codes

    def close(self) -> None:
        self._metrics.clear()
        self._nvml.nvmlShutdown()


def _find_instance(nvml: ModuleType, handle: Any) -> tuple[Any, Any]:
    """The board, and the instance of it that CUDA uses: the board itself where it is not divided."""
    with suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetUUID(handle).startswith("MIG-"):
            return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle), handle
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return handle, handle
        # older CUDA gives an instance its board's UUID; a process has one instance, the first it may see
        named = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
        for instance in _list_instances(nvml, handle):
            if not named.startswith("MIG-") or _is_named(nvml, handle, instance, named):
                return handle, instance
    return handle, handle


def _list_instances(nvml: ModuleType, board: Any) -> Iterable[Any]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(board)):
        with suppress(nvml.NVMLError):  # places that hold none
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, index)


def _is_named(nvml: ModuleType, board: Any, instance: Any, name: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES means this instance: MIG-UUID or, before driver 470, MIG-GPU-UUID/1/0."""
    if nvml.nvmlDeviceGetUUID(instance).startswith(name):
        return True
    numbers = nvml.nvmlDeviceGetGpuInstanceId(instance), nvml.nvmlDeviceGetComputeInstanceId(instance)
    return name == "MIG-{}/{}/{}".format(nvml.nvmlDeviceGetUUID(board), *numbers)


# ---- AMD


def _open_amd(device: str, uuid: str) -> tuple[DeviceMeter | None, str]:
    try:
        import amdsmi
    except (ImportError, OSError, KeyError, AttributeError) as error:  # its library is looked for on import
        return None, f"AMD SMI cannot be used: {error}"
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        return None, f"AMD SMI: {error}"
    try:
        handles = amdsmi.amdsmi_get_processor_handles()
        serials = [str(amdsmi.amdsmi_get_gpu_asic_info(one)["asic_serial"]).lower() for one in handles]
    except amdsmi.AmdSmiException as error:
        amdsmi.amdsmi_shut_down()
        return None, f"AMD SMI: {error}"
    wanted = _read_serial(uuid)
    for handle, serial in zip(handles, serials, strict=True):
        if serial.removeprefix("0x") == wanted:
            return AmdMeter(device, amdsmi, handle, serial.removeprefix("0x")), ""
    amdsmi.amdsmi_shut_down()
    return None, f"AMD SMI knows no device with the serial number {wanted}"


def _read_serial(uuid: str) -> str:
    """The serial number inside torch's UUID: HIP keeps its sixteen letters where CUDA keeps sixteen bytes."""
    with suppress(ValueError):
        return bytes.fromhex(uuid.replace("-", "")).decode("ascii").lower()
    return uuid.lower()


class _AmdUnknownError(Exception):
    """A field that says N/A."""


class AmdMeter(DeviceMeter):
    """AMD's device; figures have NVML's names where they mean the same, reasons of throttling do not."""

    def __init__(self, device: str, smi: Any, handle: Any, serial: str) -> None:
        self._smi, self._handle, self._serial = smi, handle, serial

        def read(function: str, fields: tuple[str, ...], *args: Any) -> float:
            answer = getattr(smi, function)(handle, *args)
            given = (answer.get(field) for field in fields)  # names changed between ROCm's versions
            value = next((value for value in given if isinstance(value, int | float)), None)
            if value is None:
                raise _AmdUnknownError("N/A")
            return float(value)

        clock = ("clk", "cur_clk")
        metrics: list[Metric] = [
            ("utilization_percent", "%", lambda: read("amdsmi_get_gpu_activity", ("gfx_activity",))),
            ("memory_utilization_percent", "%", lambda: read("amdsmi_get_gpu_activity", ("umc_activity",))),
            (
                "memory_used_bytes",
                "bytes",
                lambda: float(smi.amdsmi_get_gpu_memory_usage(handle, smi.AmdSmiMemoryType.VRAM)),
            ),
            ("sm_clock_mhz", "MHz", lambda: read("amdsmi_get_clock_info", clock, smi.AmdSmiClkType.GFX)),
            ("memory_clock_mhz", "MHz", lambda: read("amdsmi_get_clock_info", clock, smi.AmdSmiClkType.MEM)),
            (
                "power_watts",
                "W",
                lambda: read(
                    "amdsmi_get_power_info", ("socket_power", "current_socket_power", "average_socket_power")
                ),
            ),
            ("temperature_celsius", "°C", self._read_temperature),
            (
                "energy_joules",
                "J",
                lambda: (
                    read("amdsmi_get_energy_count", ("energy_accumulator", "power"))
                    * read("amdsmi_get_energy_count", ("counter_resolution",))
                    * 1e-6
                ),
            ),
        ]
        super().__init__(device, metrics, (smi.AmdSmiException, _AmdUnknownError))

    def _read_temperature(self) -> float:
        smi = self._smi
        ask = smi.amdsmi_get_temp_metric
        kinds, now = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric.CURRENT
        return float(ask(self._handle, getattr(kinds, "JUNCTION", None) or kinds.HOTSPOT, now))

    def read_facts(self) -> dict[str, Any]:
        smi, found = self._smi, {"uuid": self._serial}
        # power caps are told in microwatts; older versions in watts
        asked: dict[str, Callable[[], Any]] = {
            "driver": lambda: smi.amdsmi_get_gpu_driver_info(self._handle)["driver_version"],
            "max_sm_clock_mhz": lambda: smi.amdsmi_get_clock_info(self._handle, smi.AmdSmiClkType.GFX)[
                "max_clk"
            ],
            "power_limit_w": lambda: _in_watts(smi.amdsmi_get_power_cap_info(self._handle)["power_cap"]),
        }
        for name, ask in asked.items():
            with suppress(smi.AmdSmiException, KeyError, TypeError):
                if (value := ask()) != "N/A":
                    found[name] = value
        return found

    def close(self) -> None:
        self._metrics.clear()
        self._smi.amdsmi_shut_down()


def _in_watts(power: float) -> float:
    return power / 1e6 if power > 1e5 else float(power)

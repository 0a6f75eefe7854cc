"""Meters of AMD's devices: a stand-in for the package amdsmi that keeps what its documentation says."""

from __future__ import annotations

import sys
import types
from enum import IntEnum
from typing import Any

import pytest

from detscope.machine.meters import open_meter
from detscope.record.device.telemetry import DeviceSampler

SERIALS = ("0x1A2B3C4D5E6F7081", "0x2A2B3C4D5E6F7082")


class AmdSmiException(Exception):
    """As the package raises it."""


class ClockKind(IntEnum):
    GFX, MEM = 0, 4


class TemperatureKind(IntEnum):
    EDGE, JUNCTION = 0, 1


def make_smi(**changed: Any) -> types.ModuleType:
    """Units and names of ROCm 6.4; `N/A` stands for what a device does not tell."""
    smi = types.ModuleType("amdsmi")
    handles = list(range(len(SERIALS)))

    def read_clock(handle: int, kind: ClockKind) -> dict[str, Any]:
        return {"clk": 2100 if kind == ClockKind.GFX else 900, "min_clk": 132, "max_clk": 2400}

    def read_temperature(handle: int, kind: TemperatureKind, metric: Any) -> int:
        if kind != TemperatureKind.JUNCTION:
            raise AmdSmiException("not supported")
        return 64

    told: dict[str, Any] = {
        "AmdSmiException": AmdSmiException,
        "AmdSmiMemoryType": types.SimpleNamespace(VRAM=0),
        "AmdSmiClkType": ClockKind,
        "AmdSmiTemperatureType": TemperatureKind,
        "AmdSmiTemperatureMetric": types.SimpleNamespace(CURRENT=0),
        "amdsmi_init": lambda: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: handles,
        "amdsmi_get_gpu_asic_info": lambda handle: {"asic_serial": SERIALS[handle]},
        "amdsmi_get_gpu_activity": lambda handle: {"gfx_activity": 91, "umc_activity": 40},
        "amdsmi_get_gpu_memory_usage": lambda handle, kind: (handle + 1) << 30,
        "amdsmi_get_clock_info": read_clock,
        "amdsmi_get_power_info": lambda handle: {
            "current_socket_power": 412,
            "average_socket_power": "N/A",
        },
        "amdsmi_get_temp_metric": read_temperature,
        "amdsmi_get_energy_count": lambda handle: {
            "energy_accumulator": 10_000_000,
            "counter_resolution": 15.3,  # microjoules
        },
        "amdsmi_get_gpu_driver_info": lambda handle: {"driver_version": "6.12.12"},
        "amdsmi_get_power_cap_info": lambda handle: {"power_cap": 750_000_000},
    }
    for name, value in (told | changed).items():
        setattr(smi, name, value)
    return smi


@pytest.fixture
def rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch as it is on ROCm, with the second board as its first device."""
    import torch

    letters = SERIALS[1].removeprefix("0x").lower().encode()
    text = letters.hex()
    uuid = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    monkeypatch.setattr(torch.version, "hip", "6.4.43484")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    properties = types.SimpleNamespace(uuid=uuid, name="Imaginary Instinct")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)


@pytest.mark.usefixtures("rocm")
def test_amds_device_is_found_by_its_serial_number_and_gives_nvidias_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", make_smi())
    sampler = DeviceSampler("cuda:0")
    found = {(one.source, one.metric): (one.value, one.unit) for one in sampler.read_values()}
    assert {source for source, _ in found} == {"cuda:0"}
    assert {metric: value for (_, metric), value in found.items()} == {
        "utilization_percent": (91.0, "%"),
        "memory_utilization_percent": (40.0, "%"),
        "memory_used_bytes": (float(2 << 30), "bytes"),
        "sm_clock_mhz": (2100.0, "MHz"),
        "memory_clock_mhz": (900.0, "MHz"),
        "power_watts": (412.0, "W"),
        "temperature_celsius": (64.0, "°C"),
        "energy_joules": (153.0, "J"),
    }
    meter, _ = open_meter("cuda:0")
    assert meter is not None
    facts = meter.read_facts()
    assert facts == {
        "uuid": SERIALS[1].removeprefix("0x").lower(),
        "driver": "6.12.12",
        "max_sm_clock_mhz": 2400,
        "power_limit_w": 750.0,
    }


@pytest.mark.usefixtures("rocm")
def test_what_a_device_says_is_not_available_is_noted_and_never_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = {"current_socket_power": "N/A", "average_socket_power": "N/A"}
    older = {"power": 20_000_000, "counter_resolution": 15.3}  # ROCm before 6.2
    smi = make_smi(
        amdsmi_get_power_info=lambda handle: nothing,
        amdsmi_get_energy_count=lambda handle: older,
        amdsmi_get_clock_info=lambda handle, kind: {"cur_clk": 1500, "max_clk": "N/A"},
    )
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    sampler = DeviceSampler("cuda:0")
    for _ in range(2):
        found = {one.metric: one.value for one in sampler.read_values()}
        assert "power_watts" not in found
        assert found["energy_joules"] == pytest.approx(306)
        assert found["sm_clock_mhz"] == 1500
    assert sampler.notes == {"cuda:0 power_watts": "N/A"}
    meter, _ = open_meter("cuda:0")
    assert meter is not None and "max_sm_clock_mhz" not in meter.read_facts()


@pytest.mark.usefixtures("rocm")
def test_without_amds_package_or_driver_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert open_meter("cuda:0")[0] is None
    assert "AMD SMI" in open_meter("cuda:0")[1]

    def refuse() -> None:
        raise AmdSmiException("AMDSMI_STATUS_DRIVER_NOT_LOADED")

    monkeypatch.setitem(sys.modules, "amdsmi", make_smi(amdsmi_init=refuse))
    assert open_meter("cuda:0") == (None, "AMD SMI: AMDSMI_STATUS_DRIVER_NOT_LOADED")


def test_of_other_kinds_of_devices_nobody_tells() -> None:
    assert open_meter("xpu:0") == (None, "neither NVML nor AMD SMI knows a device of kind xpu")

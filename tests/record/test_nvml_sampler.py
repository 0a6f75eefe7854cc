"""The NVML sampler through the real binding, against a driver library compiled here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detscope.record.device.telemetry import NvmlSampler

_SCRIPT = """
import json, sys
from detscope.machine.devices import list_gpus
from detscope.record.device.telemetry import NvmlSampler
sampler = NvmlSampler()
rounds = [[tuple(reading) for reading in sampler.read_values()] for _ in range(int(sys.argv[1]))]
sampler.close()
after = sampler.read_values()
print(json.dumps({"rounds": rounds, "notes": sampler.notes, "gpus": list_gpus().as_dict(), "after": after}))
"""


@pytest.fixture(scope="session")
def driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in driver library")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_nvml.c")
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-Wall",
        "-Werror",
        "-o",
        str(folder / "libnvidia-ml.so.1"),
        str(source),
    ]
    subprocess.run(command, check=True)
    return folder


def sample(folder: Path, rounds: int = 1, **behaviour: str) -> dict[str, Any]:
    settings = {f"FAKE_NVML_{key.upper()}": value for key, value in behaviour.items()}
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder)} | settings
    command = [sys.executable, "-W", "error", "-c", _SCRIPT, str(rounds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def values(readings: list[list[Any]], source: str = "gpu:0") -> dict[str, tuple[float, str]]:
    return {metric: (value, unit) for name, metric, value, unit in readings if name == source}


def test_every_metric_comes_through_with_its_unit(driver_folder: Path) -> None:
    answer = sample(driver_folder)
    assert values(answer["rounds"][0]) == {
        "utilization_percent": (87.0, "%"),
        "memory_utilization_percent": (34.0, "%"),
        "memory_used_bytes": (float(5 << 30), "bytes"),
        "sm_clock_mhz": (1755.0, "MHz"),
        "memory_clock_mhz": (9501.0, "MHz"),
        "power_watts": (251.5, "W"),
        "temperature_celsius": (71.0, "°C"),
        "throttle_reasons": (float(0x24), "bits"),
        "energy_joules": (1234.5, "J"),
    }
    assert answer["notes"] == {}
    assert answer["after"] == []


def test_devices_are_named_with_driver_and_memory(driver_folder: Path) -> None:
    gpus = sample(driver_folder, count="2")["gpus"]
    assert gpus["driver"] == "600.12"
    assert [device["name"] for device in gpus["devices"]] == ["Imaginary GPU A", "Imaginary GPU B"]
    assert gpus["devices"][1] == {"index": 1, "name": "Imaginary GPU B", "memory_total_bytes": 24 << 30}


def test_a_metric_the_device_does_not_support_is_noted_and_the_others_go_on(driver_folder: Path) -> None:
    answer = sample(driver_folder, rounds=3, unsupported="nvmlDeviceGetTotalEnergyConsumption")
    for readings in answer["rounds"]:
        assert "energy_joules" not in values(readings)
        assert len(values(readings)) == 8
    assert answer["notes"] == {"gpu:0 energy_joules": "Not Supported"}


def test_a_device_lost_midway_ends_its_readings_and_leaves_the_other_device(driver_folder: Path) -> None:
    answer = sample(driver_folder, rounds=4, count="2", lost_after="2")
    first = [len(values(readings, "gpu:0")) for readings in answer["rounds"]]
    second = [len(values(readings, "gpu:1")) for readings in answer["rounds"]]
    assert first[0] == 9
    assert first[2:] == [0, 0]
    assert second == [9, 9, 9, 9]
    assert answer["notes"] == {"gpu:0": "no more readings: GPU is lost"}


def test_a_driver_that_is_not_loaded_gives_no_readings_and_the_reason(driver_folder: Path) -> None:
    answer = sample(driver_folder, init="9")
    assert answer["rounds"] == [[]]
    assert answer["notes"] == {"gpu": "NVML: Driver Not Loaded"}
    assert answer["gpus"]["devices"] == []


def test_a_driver_without_devices_says_so(driver_folder: Path) -> None:
    answer = sample(driver_folder, count="0")
    assert answer["rounds"] == [[]]
    assert answer["notes"] == {"gpu": "the driver reports no device"}


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has an NVIDIA driver")
def test_without_a_driver_library_the_sampler_is_empty_and_says_why() -> None:
    sampler = NvmlSampler()
    assert sampler.read_values() == []
    assert "libnvidia-ml" in sampler.notes["gpu"]
    sampler.close()

"""Telemetry of NVIDIA's devices through the real binding, against a driver library compiled here.

torch is a stand-in that knows its devices' UUIDs, as it does on a machine that has some.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = """
import json, sys, types
asked = json.loads(sys.argv[1])

class Cuda:
    def is_initialized(self):
        return bool(asked["started"])
    def device_count(self):
        assert asked["started"], "the driver was asked before the program started it"
        return len(asked["uuids"])
    def get_device_properties(self, index):
        assert asked["started"], "the driver was asked before the program started it"
        return types.SimpleNamespace(
            uuid=asked["uuids"][index], name="Imaginary GPU", major=8, minor=6,
            multi_processor_count=82, total_memory=24 << 30)
    def get_arch_list(self):
        return ["sm_80", "sm_90"]
    def memory_reserved(self, index):
        return asked["reserved"][index]

torch = types.ModuleType("torch")
torch.cuda, torch.__version__ = Cuda(), "2.15.0"
torch.version = types.SimpleNamespace(hip=None, cuda="13.2")
sys.modules["torch"] = torch
from detscope.machine.devices import list_gpus
from detscope.machine.meters import open_meter
from detscope.record.device.telemetry import DeviceSampler
sampler = DeviceSampler(asked["device"])
rounds = []
for number in range(asked["rounds"]):
    rounds.append([tuple(reading) for reading in sampler.read_values()])
    asked["started"] = True
sampler.close()
after, facts = sampler.read_values(), {}
if asked["device"]:
    meter, _ = open_meter(asked["device"])
    facts = meter.read_facts() if meter else {}
print(json.dumps({
    "rounds": rounds, "notes": sampler.notes, "gpus": list_gpus().as_dict(), "after": after, "facts": facts}))
"""
_ALL = 9  # metrics of a device that has all of them


def uuid(board: int, instance: int = 0) -> str:
    """As torch writes it: without a prefix."""
    return f"0000000{board}-000{instance}-4222-8333-444444444444"


@pytest.fixture(scope="session")
def driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in driver library")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_nvml.c")
    library = str(folder / "libnvidia-ml.so.1")
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, str(source)]
    subprocess.run(command, check=True)
    return folder


def sample(
    folder: Path | None,
    device: str | None = "cuda:0",
    uuids: tuple[str, ...] = (uuid(0), uuid(1)),
    *,
    rounds: int = 1,
    started: bool = True,
    reserved: tuple[int, ...] = (1, 1),
    visible: str = "",
    **behaviour: str,
) -> dict[str, Any]:
    settings = {f"FAKE_NVML_{key.upper()}": value for key, value in behaviour.items()}
    environment = {**os.environ, **settings, "LD_LIBRARY_PATH": str(folder or "")}
    environment |= {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    asked = {"device": device, "uuids": uuids, "rounds": rounds, "started": started, "reserved": reserved}
    command = [sys.executable, "-W", "error", "-c", _SCRIPT, json.dumps(asked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def values(readings: list[list[Any]], source: str = "cuda:0") -> dict[str, tuple[float, str]]:
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
    second = {"index": 1, "name": "Imaginary GPU B", "memory_total_bytes": 24 << 30, "capability": "8.6"}
    assert gpus["devices"][1] == second


def test_a_device_is_found_by_its_uuid_and_named_as_torch_names_it(driver_folder: Path) -> None:
    # CUDA_VISIBLE_DEVICES=1,0: torch's first device is the driver's second, and only its own is lost
    swapped = (uuid(1), uuid(0))
    answer = sample(driver_folder, "cuda:1", swapped, count="2", rounds=4, lost_after="2")
    assert {name for readings in answer["rounds"] for name, *_ in readings} == {"cuda:1"}
    assert [len(readings) for readings in answer["rounds"]][2:] == [0, 0]
    assert answer["notes"] == {"cuda:1": "no more readings: GPU is lost"}
    other = sample(driver_folder, "cuda:0", swapped, count="2", rounds=4, lost_after="2")
    assert [len(readings) for readings in other["rounds"]] == [_ALL] * 4


def test_devices_this_process_does_not_use_are_not_sampled(driver_folder: Path) -> None:
    assert {name for name, *_ in sample(driver_folder, count="2")["rounds"][0]} == {"cuda:0"}
    untold = sample(driver_folder, None, count="2", reserved=(0, 1 << 20))
    assert {name for name, *_ in untold["rounds"][0]} == {"cuda:1"}
    assert sample(driver_folder, "cpu", count="2")["rounds"] == [[]]


@pytest.mark.parametrize("device", ["cuda:1", None])
def test_before_the_driver_is_started_nothing_is_asked_and_afterwards_all_is(
    driver_folder: Path, device: str | None
) -> None:
    answer = sample(driver_folder, device, count="2", started=False, rounds=3, reserved=(0, 1))
    assert [len(readings) for readings in answer["rounds"]] == [0, _ALL, _ALL]
    assert answer["notes"] == {}


@pytest.mark.parametrize(
    ("told", "visible"),
    [
        (uuid(0, 2), ""),  # newer CUDA: an instance's own UUID
        (uuid(0), f"MIG-{uuid(0, 2)}"),  # older CUDA: its board's
        (uuid(0), f"MIG-GPU-{uuid(0)}/8/0"),
    ],
)
def test_an_instance_of_a_divided_board_has_its_own_memory_and_the_boards_clocks(
    driver_folder: Path, told: str, visible: str
) -> None:
    answer = sample(driver_folder, uuids=(told,), mig="2", visible=visible)
    found = values(answer["rounds"][0])
    assert found["memory_used_bytes"] == (float(2 << 30), "bytes")
    assert found["sm_clock_mhz"] == (1755.0, "MHz")
    assert {"power_watts", "energy_joules", "utilization_percent"}.isdisjoint(found)
    assert "whole board" in answer["notes"]["cuda:0 power_watts"]
    assert answer["notes"]["cuda:0 utilization_percent"] == "Not Supported"
    assert answer["facts"]["uuid"] == f"MIG-{uuid(0, 2)}"


def test_of_a_divided_board_that_is_named_by_its_number_cuda_takes_the_first_instance(
    driver_folder: Path,
) -> None:
    answer = sample(driver_folder, uuids=(uuid(0),), mig="2", visible="0")
    assert answer["facts"]["uuid"] == f"MIG-{uuid(0, 1)}"


def test_what_does_not_change_is_told_once(driver_folder: Path) -> None:
    assert sample(driver_folder)["facts"] == {
        "uuid": f"GPU-{uuid(0)}",
        "driver": "600.12",
        "max_sm_clock_mhz": 2100,
        "power_limit_w": 350.0,
    }


def test_a_uuid_the_driver_does_not_know_is_said(driver_folder: Path) -> None:
    answer = sample(driver_folder, uuids=(uuid(5),))
    assert answer["rounds"] == [[]]
    assert answer["notes"] == {"cuda:0": f"NVML knows no device with the UUID {uuid(5)}"}


def test_a_metric_the_device_does_not_support_is_noted_and_the_others_go_on(driver_folder: Path) -> None:
    answer = sample(driver_folder, rounds=3, unsupported="nvmlDeviceGetTotalEnergyConsumption")
    for readings in answer["rounds"]:
        assert "energy_joules" not in values(readings)
        assert len(values(readings)) == _ALL - 1
    assert answer["notes"] == {"cuda:0 energy_joules": "Not Supported"}


def test_a_driver_that_is_not_loaded_gives_no_readings_and_the_reason(driver_folder: Path) -> None:
    answer = sample(driver_folder, init="9")
    assert answer["rounds"] == [[]]
    assert answer["notes"] == {"cuda:0": "NVML: Driver Not Loaded"}
    assert answer["gpus"]["devices"] == []


def test_a_driver_without_devices_says_so(driver_folder: Path) -> None:
    assert sample(driver_folder, count="0")["gpus"]["reason"] == "the driver reports no device"


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has an NVIDIA driver")
def test_without_a_driver_library_the_sampler_is_empty_and_says_why() -> None:
    answer = sample(None)
    assert answer["rounds"] == [[]]
    assert "libnvidia-ml" in answer["notes"]["cuda:0"]

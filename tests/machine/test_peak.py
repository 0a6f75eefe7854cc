"""The roof of a machine: by the device's clock, in the precision that ran, kept for the next time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from detscope.machine import peak
from detscope.machine.accelerator import Accelerator
from detscope.machine.peak import choose_arithmetic, machine_peak, time_work
from queued_device import QueuedDevice

LAUNCH_NS, WORK_NS = 30_000, 400_000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "detscope").mkdir()
    return tmp_path / "detscope" / "peak.json"


def test_work_that_is_longer_than_its_launch_is_timed_without_launch_and_wait() -> None:
    device = QueuedDevice()
    assert time_work(device, lambda: device.compute(LAUNCH_NS, WORK_NS)) == pytest.approx(
        WORK_NS / 1e9, rel=1e-9
    )


def test_many_are_queued_and_waited_for_once() -> None:
    device = QueuedDevice()
    done: list[int] = []

    def work() -> None:
        done.append(device.waits)
        device.compute(LAUNCH_NS, WORK_NS)

    time_work(device, work)
    together = [done.count(waits) for waits in set(done)]
    assert max(together) > 50


def test_a_roof_is_measured_once_per_precision_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = machine_peak("cpu", 1)
    assert first["peak_flops_per_s"] > 0 and first["bandwidth_bytes_per_s"] > 0
    assert first["precision"] == "fp32"
    other = machine_peak("cpu", 1, "bf16")
    assert (other["precision"], set(other["roofs"])) == ("bf16", {"fp32", "bf16"})
    assert other["bandwidth_bytes_per_s"] == first["bandwidth_bytes_per_s"]
    assert "bf16 product" in other["definition"]

    def refuse(*_: object) -> float:
        raise AssertionError("measured again")

    monkeypatch.setattr(peak, "measure_products", refuse)
    assert machine_peak("cpu", 1)["peak_flops_per_s"] == first["peak_flops_per_s"]
    assert machine_peak("cpu", 1, "bf16")["peak_flops_per_s"] == other["roofs"]["bf16"]


def test_a_cpus_entry_of_an_earlier_version_is_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine_peak("cpu", 1)
    key = next(iter(json.loads(cache.read_text())))
    old = {"peak_flops_per_s": 5e10, "bandwidth_bytes_per_s": 2e10}
    cache.write_text(json.dumps({key: old, "another": old}))
    found = machine_peak("cpu", 1)
    assert {name: found[name] for name in old} == old
    assert found["device"] == made["device"]


def test_a_devices_entry_of_an_earlier_version_held_launches_and_is_measured_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Imaginary GPU")
    monkeypatch.setattr(peak, "choose_arithmetic", lambda accelerator, precision: "tf32")
    rates: list[tuple[str, str]] = []

    def measure(accelerator: Accelerator, arithmetic: str) -> float:
        rates.append((accelerator.name, arithmetic))
        return 1e14

    monkeypatch.setattr(peak, "measure_products", measure)
    monkeypatch.setattr(peak, "measure_copies", lambda accelerator: 1e12)
    old = {"peak_flops_per_s": 5e10, "bandwidth_bytes_per_s": 2e10}
    cache.write_text(json.dumps({f"Imaginary GPU|cuda|1|{torch.__version__}": old}))
    found = machine_peak("cuda:1", 1)
    assert (found["peak_flops_per_s"], found["bandwidth_bytes_per_s"]) == (1e14, 1e12)
    assert machine_peak("cuda:1", 1)["peak_flops_per_s"] == 1e14
    assert rates == [("cuda:1", "tf32")]


@pytest.mark.parametrize(
    ("precision", "major", "allowed", "arithmetic"),
    [
        ("fp32", 8, True, "tf32"),
        ("fp32", 8, False, "fp32"),
        ("fp32", 7, True, "fp32"),
        ("bf16", 8, True, "bf16"),
        ("fp16", 7, True, "fp16"),
    ],
)
def test_the_roof_is_that_of_the_arithmetic_that_runs(
    precision: str, major: int, allowed: bool, arithmetic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    monkeypatch.setattr(peak, "read_precision_switches", lambda torch: {"tf32_cudnn": allowed})
    assert choose_arithmetic(QueuedDevice(), precision) == arithmetic


@pytest.mark.parametrize("touch", [lambda matmul: None, lambda matmul: setattr(matmul, "allow_tf32", True)])
def test_switches_are_left_as_they_were(touch: Callable[[object], None]) -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    try:
        touch(matmul)
        own = matmul.allow_tf32
        for allowed in (True, False):
            with peak._set_tf32(torch, allowed, QueuedDevice()):
                assert matmul.allow_tf32 is allowed
            assert matmul.allow_tf32 is own
    finally:
        matmul.allow_tf32 = before

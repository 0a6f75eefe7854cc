"""What run.json says of the device: name, size, driver, precision switches."""

from __future__ import annotations

import types
from collections.abc import Iterator

import pytest
import torch

from detscope.machine.accelerator import find_accelerator
from detscope.machine.describe import describe_accelerator, read_precision_switches, runs_architecture


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = types.SimpleNamespace(
        name="Imaginary GPU", major=8, minor=6, multi_processor_count=82, total_memory=24 << 30, uuid="1-2-3"
    )
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])


@pytest.fixture
def switches() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    # both ways of setting it agree again
    if hasattr(torch.backends, "fp32_precision"):
        torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("started")
def test_a_device_is_told_with_what_its_figures_depend_on() -> None:
    found = describe_accelerator(find_accelerator("cuda:1"))
    assert found is not None
    assert (found["name"], found["device"], found["capability"]) == ("Imaginary GPU", "cuda:1", "8.6")
    assert (found["multiprocessors"], found["memory_total_bytes"]) == (82, 24 << 30)
    assert found["runtime"] == f"CUDA {torch.version.cuda}"
    assert found["arch_list_has"] is True
    assert found["tf32_matmul"] is False and found["tf32_cudnn"] is True
    assert found["cudnn_benchmark"] is False and found["cudnn_enabled"] is True
    # without the driver's library, clocks are not known, and that is said
    if found["power_limit_w"] is None:
        assert found["unknown"]["clocks and power"]


def test_a_cpu_is_no_accelerator() -> None:
    assert describe_accelerator(find_accelerator("cpu")) is None


@pytest.mark.usefixtures("switches")
def test_tf32_is_read_whichever_way_it_was_set() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    assert read_precision_switches(torch)["tf32_matmul"] is True
    torch.backends.cuda.matmul.allow_tf32 = False
    assert read_precision_switches(torch)["tf32_matmul"] is False
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip(f"torch {torch.__version__} has only one way")
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # from here on torch refuses to read the older switch
    with pytest.raises(RuntimeError):
        _ = torch.backends.cuda.matmul.allow_tf32
    found = read_precision_switches(torch)
    assert found["tf32_matmul"] is True
    assert found["fp32_precision"]["matmul"] == "tf32"


@pytest.mark.parametrize(
    ("capability", "runs"),
    [
        ("8.0", True),
        ("8.6", True),
        ("8.9", True),
        ("7.0", False),
        ("9.0", False),
        ("12.0", True),
        ("12.1", True),
    ],
)
def test_machine_code_runs_on_the_same_major_version_and_intermediate_code_on_any_newer(
    capability: str, runs: bool
) -> None:
    assert runs_architecture(capability, ["sm_75", "sm_80", "sm_120a"]) is runs
    assert runs_architecture(capability, ["compute_70"])
    assert not runs_architecture(capability, [])

"""Device names: what is accepted, what is refused, and how."""

import subprocess
import sys
import warnings

import pytest

from detscope.errors import MachineError, UsageError
from detscope.machine.devices import resolve_device


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def test_cpu_is_decided_without_importing_torch() -> None:
    code = "import sys; from detscope.machine import devices"
    code += "; print(devices.resolve_device('cpu'), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cpu", "False"]


def test_auto_takes_what_there_is() -> None:
    assert resolve_device("auto") == ("cuda:0" if has_cuda() else "cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:3"])
def test_cuda_without_cuda_is_an_error_of_the_machine_with_one_line_and_a_hint(name: str) -> None:
    if has_cuda():
        pytest.skip("this machine has CUDA")
    with pytest.raises(MachineError) as caught:
        resolve_device(name)
    assert caught.value.exit_code == 4
    assert name in caught.value.message
    assert "\n" not in caught.value.message
    assert "cpu" in caught.value.hint


@pytest.mark.gpu
def test_a_cuda_index_beyond_the_devices_is_refused_with_the_count() -> None:
    if not has_cuda():
        pytest.skip("no CUDA device")
    assert resolve_device("cuda") == "cuda:0"
    with pytest.raises(MachineError, match="CUDA has"):
        resolve_device("cuda:99")


def test_an_index_beyond_the_devices_torch_counts_is_refused_with_the_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == "cuda:0"
    assert resolve_device("cuda:1") == "cuda:1"
    with pytest.raises(MachineError, match="CUDA has 2 devices") as caught:
        resolve_device("cuda:2")
    assert "cuda:0 to cuda:1" in caught.value.hint


def test_what_torch_says_about_an_old_driver_is_the_reason_given(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def too_old() -> bool:
        warnings.warn("CUDA initialization: The NVIDIA driver is too old\nmore", stacklevel=1)
        return False

    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "is_available", too_old)
    with pytest.raises(MachineError) as caught:
        resolve_device("cuda:0")
    assert caught.value.message.endswith("The NVIDIA driver is too old")
    assert resolve_device("auto") == "cpu"


def test_a_torch_built_without_cuda_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(MachineError, match="built without CUDA"):
        resolve_device("cuda")


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:-1", "cuda:0 ", "CPU", "cuda:one", "cuda:9999"])
def test_nonsense_names_are_usage_errors(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_device(name)
    assert caught.value.exit_code == 2
    assert "auto" in caught.value.hint

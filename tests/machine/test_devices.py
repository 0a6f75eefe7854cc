"""Device names: what is accepted, what is refused, and how."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from detscope.config.schema import Settings
from detscope.errors import DetscopeError, MachineError, UsageError
from detscope.machine.accelerator import find_accelerator
from detscope.machine.devices import resolve_device
from detscope.sessions.ranks.exchange import choose_device


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
    # torch 2.6 asks the driver whether there is one
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
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


class CountedDevices:
    """What torch says of a kind of device, for machines that have none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, count: int) -> None:
        import torch

        self.current: list[str] = []
        module = getattr(torch, kind)
        monkeypatch.setattr(module, "is_available", lambda: count > 0)
        monkeypatch.setattr(module, "device_count", lambda: count)
        monkeypatch.setattr(module, "set_device", lambda device: self.current.append(str(device)))
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))


def test_rocm_is_cuda_to_torch_and_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4.43484")
    CountedDevices(monkeypatch, "cuda", 2)
    assert resolve_device("cuda:1") == "cuda:1"
    assert resolve_device("auto") == "cuda:0"
    CountedDevices(monkeypatch, "cuda", 0)
    with pytest.raises(MachineError, match="no ROCm device"):
        resolve_device("cuda")
    assert resolve_device("auto") == "cpu"


def test_intels_devices_are_counted_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    with pytest.raises(MachineError, match="built without XPU"):
        resolve_device("xpu")
    monkeypatch.setattr(torch.version, "xpu", "20250302", raising=False)
    CountedDevices(monkeypatch, "xpu", 2)
    assert [resolve_device(name) for name in ("auto", "xpu", "xpu:1")] == ["xpu:0", "xpu:0", "xpu:1"]
    with pytest.raises(MachineError, match="XPU has 2 devices") as caught:
        resolve_device("xpu:2")
    assert caught.value.hint == "use xpu:0 to xpu:1"


def test_apples_device_is_one_and_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    with pytest.raises(MachineError, match="built without MPS"):
        resolve_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    assert (resolve_device("mps"), resolve_device("auto")) == ("mps", "mps")


def test_a_torch_that_raises_where_it_has_no_accelerator_means_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    def refuse() -> None:  # as torch 2.6 does
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", refuse)
    assert resolve_device("auto") == "cpu"
    assert find_accelerator("imaginary:0").unknown["clock"]


@pytest.mark.parametrize("verb", ["train", "infer", "eval"])
def test_the_device_a_session_is_given_is_the_current_one_before_anything_is_built(
    verb: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch

    from detscope.report.progress import QuietProgress
    from detscope.sessions.evaluate.evaluation import run_evaluation
    from detscope.sessions.infer.inference import run_inference
    from detscope.sessions.train.training import run_training

    monkeypatch.setattr(torch.version, "cuda", "13.2")
    devices = CountedDevices(monkeypatch, "cuda", 2)
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {section: {"device": "cuda:1"} for section in ("training", "inference")}
    settings = Settings(**given, model={"name": "tiny_fasterrcnn"}, data={"name": "no such data"})
    run = {"train": run_training, "infer": run_inference, "eval": run_evaluation}[verb]
    with pytest.raises(DetscopeError, match="no such data"):
        run(settings, progress=QuietProgress())
    assert devices.current == ["cuda:1"]


def test_what_differs_between_devices_is_asked_of_them() -> None:
    names = ("cpu", "cuda:1", "xpu:0", "mps")
    found = [find_accelerator(name) for name in names]
    assert [one.is_host for one in found] == [True, False, False, False]
    assert [one.pins_memory for one in found] == [False, True, True, False]
    assert [one.collectives for one in found] == ["gloo", "nccl", "xccl", "gloo"]


def test_random_states_are_those_of_the_own_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    states = {f"cuda:{index}": torch.full((4,), index, dtype=torch.uint8) for index in range(2)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[str(device)].clone())
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: states.update({str(device): state})
    )
    device = find_accelerator("cuda:1")
    kept = device.read_random_state()
    states["cuda:1"] = torch.zeros(4, dtype=torch.uint8)
    device.restore_random_state(kept)
    assert states["cuda:1"].tolist() == [1, 1, 1, 1]
    assert find_accelerator("cpu").read_random_state() is None


def test_every_rank_gets_a_device_of_the_kind_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "xpu", "20250302", raising=False)
    CountedDevices(monkeypatch, "xpu", 2)
    assert choose_device("cpu", 1, 2) == "cpu"
    assert choose_device("auto", 1, 2) == "xpu:1"
    assert choose_device("xpu:0", 1, 2) == "xpu:1"
    with pytest.raises(MachineError, match="3 ranks need a XPU device each, this host has 2"):
        choose_device("xpu", 0, 3)


@pytest.mark.parametrize(
    "name", ["", "gpu", "xpu:", "mpsx", "cuda:", "cuda:-1", "cuda:0 ", "CPU", "cuda:one", "cuda:9999"]
)
def test_nonsense_names_are_usage_errors(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_device(name)
    assert caught.value.exit_code == 2
    assert "auto" in caught.value.hint

"""Sweeps on devices: which there are is torch's word, and a limit of memory is not one of addresses."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from detscope.machine import probe
from detscope.machine.probe import TorchDevice, TorchProbe, list_torch_devices
from detscope.sweep import keys, measure
from detscope.sweep.cluster import choose_task_options
from detscope.sweep.keys import read_environment
from detscope.sweep.plan import load_plan
from detscope.sweep.prepare import explain_refusal, resolve_plan_device

# torch as it would be with two of three boards visible, in another order
STAND_IN = """
import os, types
__version__ = "2.15.0"
version = types.SimpleNamespace(cuda="13.2", hip=None, xpu=None)
def get_num_threads(): return 3
class device:
    type = "cuda"
accelerator = types.SimpleNamespace(current_accelerator=lambda: device())
class cuda:
    names = [("small", 7), ("middle", 8), ("large", 9)]
    seen = [int(text) for text in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: len(cuda.seen))
    get_device_name = staticmethod(lambda index: cuda.names[cuda.seen[index]][0])
    get_device_properties = staticmethod(
        lambda index: types.SimpleNamespace(major=cuda.names[cuda.seen[index]][1], minor=0))
    get_arch_list = staticmethod(lambda: ["sm_80", "sm_90"])
def get_device_module(kind): return cuda
"""


@pytest.fixture
def asked_again() -> Iterator[None]:
    list_torch_devices.cache_clear()
    yield
    list_torch_devices.cache_clear()


@pytest.mark.usefixtures("asked_again")
def test_devices_are_torchs_in_torchs_order_and_asked_outside_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    monkeypatch.setattr(probe, "_DRIVERS", ("null",))  # as if there were a driver
    facts = read_environment()
    assert (facts["accelerator"], facts["gpus"]) == ("cuda", ["large", "small"])
    found = list_torch_devices()
    assert [found.runs_on(one) for one in found.devices] == [True, False]
    assert not torch.cuda.is_initialized()


def facts_of(monkeypatch: pytest.MonkeyPatch, seen: TorchProbe) -> dict[str, Any]:
    monkeypatch.setattr(keys, "list_torch_devices", lambda: seen)
    return read_environment()


def test_a_plans_device_is_what_torch_has_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[axes]\nnetwork = "resnet18"\nstage = "inference"\n', encoding="utf-8")
    trial = load_plan(plan).trials[0]
    two = (TorchDevice("one"), TorchDevice("other"))
    for kind, auto in (("cuda", "cuda:0"), ("xpu", "xpu:0"), ("mps", "mps")):
        facts = facts_of(monkeypatch, TorchProbe(kind=kind, devices=two[: 1 if kind == "mps" else 2]))
        assert resolve_plan_device("auto", facts) == auto
        assert explain_refusal(trial, auto, facts) == ""
    facts = facts_of(monkeypatch, TorchProbe(kind="cuda", devices=two))
    assert explain_refusal(trial, "cuda:1", facts) == ""
    assert explain_refusal(trial, "cuda:2", facts) == "cuda:2: torch sees 2 CUDA devices there"
    assert explain_refusal(trial, "xpu:0", facts) == "xpu:0: torch sees no XPU devices there"
    # this torch is made for CUDA, and there is no device
    facts = facts_of(monkeypatch, TorchProbe(kind="cuda"))
    assert resolve_plan_device("auto", facts) == "cpu"
    assert explain_refusal(trial, "cuda:0", facts) == "cuda:0: torch sees no CUDA devices there"


def test_on_a_gpu_the_allocator_is_limited_and_not_the_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    fractions: list[tuple[float, str]] = []

    def refuse(limit_bytes: int | None) -> None:
        raise AssertionError("a limit of addresses ends every process that starts CUDA")

    monkeypatch.setattr(measure, "limit_memory", refuse)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    current: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(str(device)))
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 << 30, 16 << 30))
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda fraction, device: fractions.append((fraction, str(device))),
    )
    monkeypatch.setattr(
        measure, "_measure_network", lambda request, accelerator, *_: {"on": accelerator.name}
    )
    request = {"device": "cuda:1", "memory_bytes": 4 << 30}
    assert measure.measure_trial(request) == {"on": "cuda:1"}
    assert fractions == [
        (0.25, "cuda:1"),
        (1.0, "cuda:1"),
    ]  # a process that is used again has all of it again
    assert current == ["cuda:1"]


def test_a_task_on_a_gpu_asks_ray_for_one_and_keeps_its_number() -> None:
    assert choose_task_options("cpu") == {}
    asked = choose_task_options("cuda:1")
    assert asked["num_gpus"] == 1
    assert asked["runtime_env"]["env_vars"]["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] == "1"

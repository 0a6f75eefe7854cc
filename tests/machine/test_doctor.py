"""The doctor on this machine, and on machines with something wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from detscope.cli.doctor import doctor
from detscope.machine.devices import GpuDevice, GpuList
from detscope.machine.doctor import (
    MATCH_TOPIC,
    MachineFinding,
    examine_machine,
    judge_compiler,
    judge_counters,
    judge_devices,
    judge_driver,
    torch_matches,
)
from detscope.machine.probe import TorchDevice, TorchProbe, try_torch
from detscope.machine.programs import find_browser, find_nsight


@pytest.fixture(scope="module")
def findings() -> list[MachineFinding]:
    return examine_machine()


def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(doctor)
    return app


def write_package(folder: Path, name: str, code: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code)


def test_every_finding_that_is_not_ok_says_what_it_costs_and_what_to_do(
    findings: list[MachineFinding],
) -> None:
    for finding in findings:
        assert finding.value
        if finding.status == "ok":
            assert (finding.cost, finding.remedy) == ("", "")
        else:
            assert finding.cost and finding.remedy


def test_everything_a_person_asks_for_is_looked_at(findings: list[MachineFinding]) -> None:
    topics = [finding.topic for finding in findings]
    assert len(set(topics)) == len(topics)
    assert {
        "python",
        "torch",
        "torchvision",
        MATCH_TOPIC,
        "devices",
        "C compiler",
        "cores",
        "memory",
        "/dev/shm",
    } <= set(topics)
    assert {"disk", "browser", "Nsight Systems", "Nsight Compute", "make", "docker"} <= set(topics)


def test_torch_and_torchvision_of_this_environment_match(findings: list[MachineFinding]) -> None:
    assert torch_matches(findings)


def test_a_torchvision_whose_operators_do_not_load_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, "torchvision", "raise RuntimeError('operator torchvision::nms does not exist')")
    write_package(tmp_path, "torch", "")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    checked = try_torch()
    assert checked.problem == "RuntimeError: operator torchvision::nms does not exist"


def test_a_torch_file_in_the_current_folder_is_not_what_is_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "torch.py").write_text("raise SystemExit('the wrong torch')")
    write_package(tmp_path, "torch", "raise SystemExit('the installed torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path / "here")
    assert try_torch().problem == "the installed torch"


def test_a_probe_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path, "torch", "import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    checked = try_torch(timeout_s=1)
    assert "more than 1 s" in checked.problem


def test_json_stands_alone_on_standard_output_and_the_exit_code_is_4_on_a_mismatch(tmp_path: Path) -> None:
    write_package(tmp_path, "torchvision", "raise RuntimeError('operator torchvision::nms does not exist')")
    write_package(tmp_path, "torch", "")
    script = "import typer; from detscope.cli.doctor import doctor; typer.run(doctor)"
    done = subprocess.run(
        [sys.executable, "-c", script, "--json"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    answer = json.loads(done.stdout)
    assert answer["torch_matches"] is False
    broken = next(finding for finding in answer["findings"] if finding["topic"] == MATCH_TOPIC)
    assert "one index" in broken["remedy"]


def test_the_table_names_what_is_missing_and_the_exit_code_is_0(
    findings: list[MachineFinding], monkeypatch: pytest.MonkeyPatch
) -> None:
    from detscope.machine import doctor as module

    odd = MachineFinding("[bold]tool[/]", "missing", "[red]not here[/]", "a little", "install [it]")
    monkeypatch.setattr(module, "examine_machine", lambda: [*findings, odd])
    result = CliRunner().invoke(command(), [], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "[bold]tool[/]" in result.output and "[red]not here[/]" in result.output
    assert "costs: a little" in result.output and "to do: install [it]" in result.output


def test_nsight_is_found_where_its_installer_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_nsight("nsys", tmp_path) is None
    for version in ("2024.1.1", "2025.3.1"):
        folder = tmp_path / "opt/nvidia/nsight-systems" / version / "bin"
        folder.mkdir(parents=True)
        (folder / "nsys").touch()
    assert find_nsight("nsys", tmp_path) == tmp_path / "opt/nvidia/nsight-systems/2025.3.1/bin/nsys"
    (tmp_path / "nsys").touch(mode=0o755)
    assert find_nsight("nsys", tmp_path) == tmp_path / "nsys"


def test_a_browser_that_playwright_downloaded_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_browser() is None
    chrome = tmp_path / ".cache/ms-playwright/chromium-1200/chrome-linux/chrome"
    chrome.parent.mkdir(parents=True)
    chrome.touch(mode=0o755)
    assert find_browser() == chrome


BUILT_FOR = ("sm_75", "sm_80", "sm_90")


def probe(capability: str = "8.6", **about: Any) -> TorchProbe:
    device = TorchDevice("Imaginary GPU", capability, "cuda:0", **{"right": True} | about)
    return TorchProbe(kind="cuda", devices=(device,), built_for=BUILT_FOR, cuda="13.2")


GPUS = GpuList((GpuDevice(0, "Imaginary GPU", 8 << 30, "6.1"),), "535.104")


def test_a_device_that_computes_what_the_cpu_computes_is_fine() -> None:
    found = judge_devices(probe(), GpuList(driver="580.65"))
    assert found.status == "ok"
    assert found.value == (
        "cuda:0: Imaginary GPU, capability 8.6: computes what the CPU computes (driver 580.65)"
    )


@pytest.mark.parametrize(
    ("torch", "said"),
    [
        (probe("7.0"), "for which this torch is not built (sm_75, sm_80, sm_90)"),
        (probe(right=False), "computed something else than the CPU"),
        (
            probe(right=None, problem="AcceleratorError: no kernel image"),
            "failed: AcceleratorError: no kernel",
        ),
    ],
)
def test_a_device_that_is_there_and_does_not_work_is_said_to_be_so(torch: TorchProbe, said: str) -> None:
    found = judge_devices(torch, GpuList(driver="580.65"))
    assert found.status == "warning"
    assert said in found.value
    assert found.cost and found.remedy


def test_what_torch_runs_on_a_device_is_compared_with_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe itself, with a CPU in a device's place: right, and wrong where its product is."""
    code = """
import importlib.util, sys
real = importlib.util.spec_from_file_location("torch", REAL, submodule_search_locations=[PLACE])
module = importlib.util.module_from_spec(real)
sys.modules["torch"] = module
real.loader.exec_module(module)
import torch
torch.accelerator.current_accelerator = lambda: torch.device("xpu")
torch.accelerator.synchronize = lambda device: None
torch.xpu.is_available, torch.xpu.device_count = lambda: True, lambda: 1
torch.xpu.get_device_name = lambda index: "a CPU in disguise"
moved = torch.Tensor.to
torch.Tensor.to = lambda self, device: self + WRONG if device == "xpu:0" else moved(self, device)
"""
    import torch

    place = Path(torch.__file__).parent
    for wrong in (0, 1):
        (tmp_path / "torch").mkdir(exist_ok=True)
        text = code.replace("REAL", repr(torch.__file__)).replace("PLACE", repr(str(place)))
        (tmp_path / "torch" / "__init__.py").write_text(text.replace("WRONG", str(wrong)))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        found = try_torch()
        assert found.problem == ""
        assert [(one.name, one.device, one.right) for one in found.devices] == [
            ("a CPU in disguise", "xpu:0", wrong == 0)
        ]


def test_which_driver_the_wheels_want_is_said_for_the_gpu_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("detscope.machine.doctor.torch_cuda_version", lambda: "13.2")
    found = judge_devices(TorchProbe(kind="cuda", built_for=BUILT_FOR), GPUS)
    assert "Imaginary GPU (capability 6.1), driver 535.104, but torch for CUDA 13.2" in found.value
    assert "580 or newer and a GPU of capability 7.5 or newer (torch for CUDA 13.2)" in found.remedy
    driver = judge_driver(GPUS, "13.2")
    assert driver is not None and driver.status == "warning"
    assert driver.value == "535.104; torch for CUDA 13.2 wants 580 or newer"
    assert getattr(judge_driver(GPUS, "12.8"), "status", None) == "ok"
    assert judge_driver(GpuList(), "13.2") is None and judge_driver(GPUS, None) is None
    absent = judge_devices(TorchProbe(kind="cuda", built_for=BUILT_FOR), GpuList(reason="no driver"))
    assert absent.status == "missing" and "580 or newer" in absent.remedy


def test_a_missing_compiler_and_missing_headers_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert judge_compiler(tmp_path).status == "missing"
    (tmp_path / "gcc").touch(mode=0o755)
    found = judge_compiler(tmp_path)
    assert (found.status, found.value) == ("warning", f"{tmp_path / 'gcc'}, but no {tmp_path / 'Python.h'}")
    (tmp_path / "Python.h").touch()
    assert judge_compiler(tmp_path).status == "ok"


@pytest.mark.parametrize(
    ("restricted", "capabilities", "status"),
    [
        ("RmProfilingAdminOnly: 1", "0000000000000000", "warning"),
        ("RmProfilingAdminOnly: 1", "000001ffffffffff", "ok"),
        ("RmProfilingAdminOnly: 0", "0000000000000000", "ok"),
    ],
)
def test_counters_that_only_administrators_may_read_are_said_before_ncu_fails(
    restricted: str, capabilities: str, status: str, tmp_path: Path
) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/driver/nvidia/params").write_text(f"ResmanDebugLevel: 4294967295\n{restricted}\n")
    (tmp_path / "proc/self/status").write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    found = judge_counters(Path("/opt/ncu"), tmp_path)
    assert found.status == status
    if status == "warning":
        assert "NVreg_RestrictProfilingToAdminUsers=0" in found.remedy
        assert "--cap-add=SYS_ADMIN" in found.remedy
    assert judge_counters(None, tmp_path).status == "missing"

"""The doctor on this machine, and on machines with something wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from detscope.cli.doctor import doctor
from detscope.machine.doctor import MATCH_TOPIC, MachineFinding, check_torch, examine_machine, torch_matches
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
        "CUDA devices",
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
    checked = check_torch()
    assert not checked.works
    assert checked.problem == "RuntimeError: operator torchvision::nms does not exist"


def test_a_torch_file_in_the_current_folder_is_not_what_is_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "torch.py").write_text("raise SystemExit('the wrong torch')")
    write_package(tmp_path, "torch", "raise SystemExit('the installed torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path / "here")
    assert check_torch().problem == "the installed torch"


def test_a_probe_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path, "torch", "import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    checked = check_torch(timeout_s=1)
    assert not checked.works
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

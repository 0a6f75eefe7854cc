"""`make browser`: Chromium is installed where it can be, and its lack never fails the tests."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The Makefile in an environment that is installed, with stand-ins that write down their calls."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    program(tmp_path / ".venv/bin/python", "exit 1")  # no browser is found
    program(tmp_path / "bin/sudo", 'shift; exec "$@"')
    for age_s, name in ((30, ".uv"), (20, ".installed"), (10, ".installed-dev")):
        (tmp_path / ".venv" / name).touch()
        later = time.time() + 86_400 - age_s
        os.utime(tmp_path / ".venv" / name, (later, later))
    return tmp_path


def program(path: Path, code: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)


def make_browser(repository: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{repository / 'bin'}:{os.environ['PATH']}"}
    command = [str(shutil.which("make")), "browser"]
    return subprocess.run(
        command, cwd=repository, env=environment, capture_output=True, text=True, check=False
    )


def test_a_missing_browser_is_installed_by_the_system(repository: Path) -> None:
    program(repository / "bin/apt-get", f'echo "$@" >> {repository}/calls')
    done = make_browser(repository)
    assert done.returncode == 0, done.stderr
    assert "chromium" in (repository / "calls").read_text()
    assert "hint" not in done.stdout


def test_a_browser_that_cannot_be_had_costs_a_hint_and_not_the_tests(repository: Path) -> None:
    program(repository / "bin/apt-get", "echo no network; exit 100")
    done = make_browser(repository)
    assert done.returncode == 0
    assert "hint: tests with a browser will be skipped" in done.stdout
    assert "no network" in (repository / ".venv/browser.log").read_text()


def test_a_browser_that_is_there_is_left_alone(repository: Path) -> None:
    program(repository / ".venv/bin/python", "exit 0")
    program(repository / "bin/apt-get", f"touch {repository}/called")
    assert make_browser(repository).stdout == ""
    assert not (repository / "called").exists()

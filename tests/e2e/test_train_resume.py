"""A training that is killed or stopped and goes on ends where it would have ended: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "detscope", "train"]
TRAINING = ["tiny_fasterrcnn", "--data", "synthetic", "--epochs", "5", "--eval-every", "2"]
SMALL = ["--batch-size", "2", "--num-workers", "1", "--seed", "3"]
SMALL += ["--set", "data.images=8", "--set", "evaluation.images=4", "--set", "data.flip=true"]
SMALL += ["--set", "data.image_width=160", "--set", "data.image_height=128"]


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict:
    done = run(*TRAINING, *SMALL, "--json", folder=tmp_path_factory.mktemp("whole"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def started(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *TRAINING, *SMALL],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 120
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline, f"no {pattern}"
        time.sleep(0.01)


def resumed(folder: Path) -> dict:
    done = run("--resume", "latest", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_same_end(found: dict, wanted: dict) -> None:
    assert found["loss"]["last"] == pytest.approx(wanted["loss"]["last"], abs=1e-4)
    assert found["loss"]["first"] == pytest.approx(wanted["loss"]["first"], abs=1e-4)
    for figure in ("AP", "AP50"):
        assert found["accuracy"][figure] == pytest.approx(wanted["accuracy"][figure], abs=1e-4)
    assert len(found["epochs"]) == len(wanted["epochs"]) == 5
    for mine, other in zip(found["epochs"], wanted["epochs"], strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], abs=1e-4)
        assert ("accuracy" in mine) == ("accuracy" in other)


def test_killed_after_its_third_epoch_and_resumed_it_ends_where_the_uninterrupted_one_did(
    uninterrupted, tmp_path
):
    child = started(tmp_path)
    wait_for(tmp_path, "runs/*/checkpoints/step-*-0003/state.json")
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    (killed,) = [path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()]
    before = {path: path.stat().st_mtime_ns for path in killed.rglob("*") if path.is_file()}
    summary = resumed(tmp_path)
    assert summary["resumed_from"]["epoch"] == 3
    assert summary["resumed_from"]["run"] == killed.name
    check_same_end(summary, uninterrupted)
    assert {path: path.stat().st_mtime_ns for path in killed.rglob("*") if path.is_file()} == before


def test_stopped_inside_an_epoch_it_keeps_a_checkpoint_and_resumed_ends_the_same(uninterrupted, tmp_path):
    child = started(tmp_path)
    wait_for(tmp_path, "runs/*/checkpoints/step-*-0001/state.json")
    time.sleep(0.2)  # somewhere in the second pass
    os.killpg(child.pid, signal.SIGINT)  # a terminal tells the whole group, workers too
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert "Traceback" not in errors
    assert "detscope train --resume runs/" in errors
    summary = resumed(tmp_path)
    assert summary["resumed_from"]["step"] > 4
    check_same_end(summary, uninterrupted)


def test_told_to_terminate_it_keeps_a_checkpoint_too(tmp_path):
    child = started(tmp_path)
    wait_for(tmp_path, "runs/*/checkpoints/step-*-0001/state.json")
    child.terminate()
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 143, errors
    assert "Traceback" not in errors
    assert "detscope train --resume runs/" in errors

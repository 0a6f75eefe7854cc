"""A training that is killed or stopped and goes on ends where it would have ended: real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from gated import GATE, WAITING
from torch_process import DETECTION, Ended, TorchServer, wait_for

pytestmark = pytest.mark.processes

GATED = f"{Path(__file__).with_name('gated.py')}:detector"
STEPS_PER_EPOCH = 4
TRAINING = [GATED, "--data", "synthetic", "--epochs", "5", "--eval-every", "2"]
SMALL = ["--batch-size", "2", "--num-workers", "1", "--seed", "3"]
SMALL += ["--set", "data.images=8", "--set", "evaluation.images=4", "--set", "data.flip=true"]
SMALL += ["--set", "data.image_width=160", "--set", "data.image_height=128"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, torch_server) -> dict:
    whole = tmp_path_factory.mktemp("whole")
    done = torch_server("train", *TRAINING, *SMALL, "--json", folder=whole, imports=DETECTION)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def stopped(server: TorchServer, folder: Path, step: int, stop: Callable[[int], None]) -> Ended:
    """Stop a training that has come to the forward pass of this step, and waits there until it is stopped."""
    (folder / GATE).write_text(str(step))

    def when_there(child: int) -> None:
        wait_for(folder, WAITING)
        stop(child)
        (folder / GATE).unlink()

    return server("train", *TRAINING, *SMALL, folder=folder, imports=DETECTION, meanwhile=when_there)


def resumed(server: TorchServer, folder: Path) -> dict:
    done = server("train", "--resume", "latest", "--json", folder=folder, imports=DETECTION)
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
    uninterrupted, tmp_path, torch_server
):
    killed_at = 3 * STEPS_PER_EPOCH + 1
    done = stopped(torch_server, tmp_path, killed_at, lambda child: os.killpg(child, signal.SIGKILL))
    assert done.returncode == -signal.SIGKILL
    (killed,) = [path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()]
    before = {path: path.stat().st_mtime_ns for path in killed.rglob("*") if path.is_file()}
    summary = resumed(torch_server, tmp_path)
    assert summary["resumed_from"]["epoch"] == 3
    assert summary["resumed_from"]["run"] == killed.name
    check_same_end(summary, uninterrupted)
    assert {path: path.stat().st_mtime_ns for path in killed.rglob("*") if path.is_file()} == before


def test_stopped_inside_an_epoch_it_keeps_a_checkpoint_and_resumed_ends_the_same(
    uninterrupted, tmp_path, torch_server
):
    # a terminal tells the whole group, workers too
    inside = STEPS_PER_EPOCH + 2
    done = stopped(torch_server, tmp_path, inside, lambda child: os.killpg(child, signal.SIGINT))
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert "detscope train --resume runs/" in done.stderr
    summary = resumed(torch_server, tmp_path)
    assert summary["resumed_from"]["step"] >= inside
    check_same_end(summary, uninterrupted)


def test_told_to_terminate_it_keeps_a_checkpoint_too(tmp_path, torch_server):
    inside = STEPS_PER_EPOCH + 2
    done = stopped(torch_server, tmp_path, inside, lambda child: os.kill(child, signal.SIGTERM))
    assert done.returncode == 143, done.stderr
    assert "Traceback" not in done.stderr
    assert "detscope train --resume runs/" in done.stderr

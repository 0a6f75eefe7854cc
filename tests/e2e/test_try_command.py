"""`detscope try` and `tune` as a person types them: real processes; `python -m bench trying` has more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from torch_process import TorchServer

from detscope.analyze.schema import make_schema
from slow_disk import install_slow_disk

PLANTED = Path(__file__).parents[1] / "planted_defects"
NAMED = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]


def detscope(*words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detscope", *words],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, torch_server: TorchServer) -> Path:
    """A repository with a recorded script of 20 steps."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(PLANTED / "padding.py", folder)
    if shutil.which("git"):
        for words in (["init", "-q"], ["add", "."], [*NAMED, "commit", "-q", "-m", "first"]):
            subprocess.run(["git", *words], cwd=folder, check=True)
    done = torch_server("run", "--level", "phases", "padding.py", "--steps", "20", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


def try_patch(name: str, folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = detscope("try", "latest", "--patch", str(PLANTED / name), "--json", *words, folder=folder)
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    Draft202012Validator(make_schema("try")).validate(told)
    return done.returncode, told


def test_a_patch_is_measured_in_copies_with_equal_results_and_two_pairs_decide_nothing(
    project: Path,
) -> None:
    before = (project / "padding.py").read_bytes()
    code, told = try_patch("padding.patch", project, "--rounds", "2", "--markdown", "body.md")
    assert (code, told["verdict"]) == (5, "undecided") and "6 are the least" in told["why"]
    assert told["results"]["verdict"] == "equal" and told["results"]["base_difference"]["share"] == 0
    assert told["time"]["pairs"] == 2 and told["time"]["gain"] > 0.3  # most of the step is padding
    assert told["files"] == ["padding.py"] and len(told["runs_after"]) == 2
    body = (project / "body.md").read_text()
    assert body == (Path(told["folder"]) / "try.md").read_text()
    for part in (
        "**Cause.**",
        "**Place.**",
        "95 % interval",
        "**How it was measured.**",
        "**What was not.**",
    ):
        assert part in body
    assert str(project) not in body  # whose folders are nobody's business
    assert (project / "padding.py").read_bytes() == before
    if shutil.which("git"):
        listed = subprocess.run(["git", "worktree", "list"], cwd=project, capture_output=True, check=True)
        assert len(listed.stdout.splitlines()) == 1


def test_a_patch_that_changes_results_is_rejected_with_the_loss_that_differs(project: Path) -> None:
    code, told = try_patch("other_results.patch", project)
    assert (code, told["verdict"]) == (7, "reject")
    assert told["time"]["pairs"] == 2  # nobody waits for its time
    worst = told["results"]["difference"]
    assert worst["what"].startswith("loss") and worst["step"] >= 1 and worst["before"] != worst["after"]
    assert f"{worst['what']} of step {worst['step']}: " in told["why"]


@pytest.mark.slow
def test_settings_and_variables_of_a_training_are_tried_together(tmp_path: Path) -> None:
    small = ["--set", "data.images=8", "--set", "data.image_width=96", "--set", "data.image_height=96"]
    assert detscope("train", "tiny_ssd", "--steps", "6", *small, folder=tmp_path).returncode == 0
    changes = ["--set", "record.telemetry_hz=0", "--env", "OMP_DYNAMIC=false"]
    done = detscope("try", "latest", *changes, "--steps", "4", "--rounds", "2", "--json", folder=tmp_path)
    told = json.loads(done.stdout)
    assert done.returncode == 5 and told["results"]["verdict"] == "equal"
    assert told["change"] == ["--set record.telemetry_hz=0", "--env OMP_DYNAMIC=false"]
    settings = [
        json.loads((Path(told[side][0]) / "run.json").read_text())["settings"]
        for side in ("runs_before", "runs_after")
    ]
    assert [one["record"]["telemetry_hz"] for one in settings] == [2.0, 0.0]
    assert {one["training"]["steps"] for one in settings} == {4}


@pytest.mark.slow
def test_tune_tries_the_workers_that_a_slow_data_set_asks_for(tmp_path: Path) -> None:
    """Two images of 100 ms each: most of the time is waiting. bench/comparing.py has pairs enough."""
    path = os.pathsep.join([str(install_slow_disk(tmp_path / "installed")), os.environ.get("PYTHONPATH", "")])
    words = ["--data", "slow", "--set", "data.images=16", "--set", "training.num_workers=0", "--steps", "6"]
    done = detscope("tune", "tiny_ssd", *words, "--budget", "1s", "--json", folder=tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (row,) = told["tried"]
    assert row["rule"] == "workers" and row["settings"]["training.num_workers"] >= 1
    assert row["time"]["per"] == "image" and row["time"]["pairs"] == 2
    assert row["verdict"] == "undecided" and told["config"] is None
    assert row["results"]["verdict"] == "not checked"


def test_a_seed_is_set_before_the_first_line_and_a_script_s_own_wins(
    torch_server: TorchServer, tmp_path: Path
) -> None:
    script = tmp_path / "draws.py"
    drawn = "print('drawn', random.random(), numpy.random.rand(), torch.rand(1).item())\n"
    script.write_text("import random, numpy, torch\n" + drawn)

    def draw(*words: str) -> list[str]:
        done = torch_server("run", *words, str(script), folder=tmp_path)
        return [line for line in done.stdout.splitlines() if line.startswith("drawn")]

    assert draw("--seed", "7") == draw("--seed", "7") != draw("--seed", "8")
    assert draw() != draw()
    script.write_text(
        "import random, numpy, torch\nrandom.seed(1); numpy.random.seed(1); torch.manual_seed(1)\n" + drawn
    )
    assert draw("--seed", "7") == draw()

"""`detscope sweep` as a person uses it: real networks, real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-c", "from detscope.cli.main import main; main()"]
PLAN = """
[axes]
network = ["squeezenet1_1", "tiny_ssd", "broken.py:make"]
batch_size = [1, 2]
stage = ["training", "inference"]
device = "cpu"
threads = 1
[[exclude]]
network = "broken*"
stage = "inference"
[[exclude]]
network = "broken*"
batch_size = 2
[measure]
max_seconds = 0.5
max_steps = 10
"""


def run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args],
        cwd=cwd,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_a_sweep_from_its_plan_to_files_of_results(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    (tmp_path / "broken.py").write_text("def make(num_classes=2):\n    raise ValueError('on purpose')\n")
    dry = run("sweep", "plan.toml", "--dry-run", "--json", cwd=tmp_path)
    assert json.loads(dry.stdout)["trials"] == 9
    assert not (tmp_path / "plan.db").exists()

    first = run("sweep", "plan.toml", "--isolation", "batch", "--json", cwd=tmp_path)
    found = json.loads(first.stdout)
    assert first.returncode == 6, first.stderr  # one of the networks cannot be built
    assert (found["done"], found["failed"], found["left"]) == (8, 1, 0)
    assert "cpu: 9/9  8 ok  1 failed" in first.stderr
    good = [row for row in found["rows"] if row["kind"] == "ok"]
    assert all(row["step_ms"] > 0 and row["allocated_bytes"] > 0 for row in good)
    assert all(row["interval_reached"] in (0, 1) for row in good)
    assert all(Path(path).stat().st_size > 5000 for path in found["pictures"])

    again = run("sweep", "plan.toml", cwd=tmp_path)
    assert "nothing was run: " in again.stdout
    status = run("sweep", "status", "plan.db", cwd=tmp_path)
    assert status.returncode == 0
    assert "failed broken.py:make training batch 1: error (" in " ".join(status.stdout.split())

    assert run("sweep", "export", "plan.db", "--format", "csv", cwd=tmp_path).stdout == "plan.csv\n"
    assert len((tmp_path / "plan.csv").read_text().splitlines()) == 10
    older = run("sweep", "export", "plan.db", "--format", "older", "--out", "older", cwd=tmp_path)
    assert "older/latency/tiny_ssd_0-gt.csv" in older.stdout
    back = run("sweep", "import", "older", "--store", "back.db", "--device", "cpu", cwd=tmp_path)
    assert back.returncode == 0, back.stderr
    merged = run("sweep", "merge", "plan.db", "back.db", "--out", "all.db", "--json", cwd=tmp_path)
    assert json.loads(merged.stdout)["duplicates"] == 0


def test_what_is_wrong_is_said_in_a_line_and_a_hint(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text('[axes]\nnetwrok = "a"\nbatch_size = 0\n', encoding="utf-8")
    done = run("sweep", "plan.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(": ", 2)[2] for line in done.stderr.splitlines()[:2]] == [
        "axes.netwrok: no such axis; did you mean network?",
        "axes.batch_size: expected a whole number of at least 1, got 0",
    ]
    for args, code, words in (
        (["nowhere.toml"], 2, "no such configuration file"),
        (["status", "nowhere.db"], 3, "no such store"),
        (["plan.toml", "--isolation", "none"], 2, "is not one of process, batch"),
        (["plan.toml", "--on", "slurm"], 2, "is neither ray nor ray://ADDRESS"),
    ):
        done = run("sweep", *args, cwd=tmp_path)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert words in done.stderr

"""Two ranks, the second slowed in its forward; the script all-reduces its losses by hand.

Whoever starts the ranks, they become one run that names the second with what it was slowed by.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detscope.runs.reader import load_run

pytestmark = pytest.mark.processes
SCRIPT = Path(__file__).with_name("straggling.py")
RECORD = ["-m", "detscope", "run", "--json", "figures.json", str(SCRIPT)]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
SLOW_MS = 100.0
LONGEST_S = 600


def figures(folder: Path, command: list[str], *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2, done.stdout  # the script's own: one line of each rank
    return json.loads((folder / "figures.json").read_text())


def check_second_is_named(folder: Path, summary: dict[str, Any]) -> None:
    held = summary["ranks"]["straggler"]
    assert (summary["ranks"]["count"], held["rank"], held["reason"]) == (2, 1, "forward"), held
    # a machine that holds a rank up cannot make the sleep shorter, only the other rank's work longer
    assert held["excess_ms"] > SLOW_MS / 2, held
    assert held["excess_ci95"][0] > 0
    waits = [row["wait_for_others_ms"] for row in summary["ranks"]["rows"]]
    assert waits[0] > waits[1]
    assert waits[0] > SLOW_MS / 2
    assert summary["verdict"].startswith("rank 1 holds the others up")
    assert len(list((folder / "runs").glob("*-run-*"))) == 1


@pytest.mark.parametrize("gradients", ["wrapper", "hand"])
def test_started_by_torchrun_the_slow_rank_is_named(tmp_path, gradients):
    slowed = [f"--slow-ms={SLOW_MS}", f"--gradients={gradients}"]
    check_second_is_named(tmp_path, figures(tmp_path, [*TORCHRUN, *RECORD], *slowed))


def started_by_own_launcher(folder: Path, recorded: tuple[int, ...], *arguments: str) -> list[str]:
    """Start two processes with nothing but their numbers and a file to meet at; what they said."""
    plain = {name: value for name, value in os.environ.items() if name not in TORCHRUN_VARIABLES}
    children = []
    for rank in (0, 1):
        record = ["-m", "detscope", "run", "--json", f"figures-{rank}.json"] if rank in recorded else []
        command = [sys.executable, *record, str(SCRIPT), "--start=file", f"--store={folder / 'store'}"]
        command += [f"--rank={rank}", *arguments]
        children.append(
            subprocess.Popen(
                command, cwd=folder, env=plain, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    told = [child.communicate(timeout=LONGEST_S) for child in children]
    assert [child.returncode for child in children] == [0, 0], told
    assert [out.split()[0] for out, _ in told] == ["0", "1"]
    return [said for _, said in told]


def test_started_by_a_launcher_of_ones_own_the_slow_rank_is_named(tmp_path):
    started_by_own_launcher(tmp_path, (0, 1), f"--slow-ms={SLOW_MS}")
    check_second_is_named(tmp_path, json.loads((tmp_path / "figures-0.json").read_text()))
    assert not (tmp_path / "figures-1.json").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_one_recorded_rank_of_two_says_that_it_cannot_tell_who_waits(tmp_path, rank):
    said = started_by_own_launcher(tmp_path, (rank,), "--steps=6")
    assert f"1 of 2 ranks recorded, rank {rank}: cannot tell who waits" in said[rank]
    assert "detscope run straggling.py" in said[rank]
    summary = json.loads((tmp_path / f"figures-{rank}.json").read_text())
    assert summary["ranks"] is None
    run = load_run(next((tmp_path / "runs").glob("*-run-*")))
    assert run.info["rank"] == {"rank": rank, "ranks": 2}


def test_started_by_spawn_the_slow_rank_is_named(tmp_path):
    record = [sys.executable, *RECORD, "--start=spawn", f"--store={tmp_path / 'store'}"]
    check_second_is_named(tmp_path, figures(tmp_path, record, f"--slow-ms={SLOW_MS}"))

"""Two ranks, the second slowed in its forward; the script all-reduces its losses by hand.

Whoever starts the ranks, they become one run that names the second with what it was slowed by.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("straggling.py")
RECORD = ["-m", "detscope", "run", "--json", "figures.json", str(SCRIPT)]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
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
    held = summary["straggler"]
    assert (summary["ranks"], held["rank"], held["reason"]) == (2, 1, "forward"), held
    # a machine that holds a rank up cannot make the sleep shorter, only the other rank's work longer
    assert held["excess_ms"] > SLOW_MS / 2, held
    assert held["excess_ci95"][0] > 0
    waits = [row["wait_for_others_ms"] for row in summary["rank_rows"]]
    assert waits[0] > waits[1]
    assert waits[0] > SLOW_MS / 2
    assert summary["verdict"].startswith("rank 1 holds the others up")
    assert len(list((folder / "runs").glob("*-run-*"))) == 1


@pytest.mark.parametrize("gradients", ["wrapper", "hand"])
def test_started_by_torchrun_the_slow_rank_is_named(tmp_path, gradients):
    slowed = [f"--slow-ms={SLOW_MS}", f"--gradients={gradients}"]
    check_second_is_named(tmp_path, figures(tmp_path, [*TORCHRUN, *RECORD], *slowed))

"""Base and changes by turns, in fresh processes: A B, B A; decided, failed or used up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from detscope.errors import InputError
from detscope.report.progress import QuietProgress
from detscope.sessions.trying.processes import TriedSide, Turns, conclude, take_turns

# a process that needs no torch: it writes the run that its word asks for
WRITER = """
import os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from compared_runs import make_run
out, kind = Path(sys.argv[1]), sys.argv[2]
with (out.parent / "order.txt").open("a") as order:
    order.write(kind + chr(10))
if kind == "broken":
    sys.exit("the disk is on fire")
seed = int.from_bytes(os.urandom(2), "big")
make_run(out, seed, {{"backbone": 40.0 if kind == "slow" else 0.0}}, steps=10)
"""


def side(folder: Path, name: str, kind: str) -> TriedSide:
    root = Path(__file__).parents[2]
    writer = folder / "writer.py"
    writer.write_text(WRITER.format(path=[str(root / "src"), str(root / "tests")]))
    return TriedSide([sys.executable, str(writer), str(folder / name), kind], folder / name)


def turn(
    folder: Path, base: TriedSide, changed: TriedSide, rounds: int, tolerance: float = float("inf")
) -> list[str]:
    turns = Turns(rounds, budget_s=600)
    take_turns(base, [changed], turns, folder / "output.txt", QuietProgress(), tolerance)
    return (folder / "order.txt").read_text().split()


def test_a_change_that_is_faster_is_accepted_once_there_are_pairs_enough(tmp_path: Path) -> None:
    base, changed = side(tmp_path, "base", "slow"), side(tmp_path, "with", "fast")
    order = turn(tmp_path, base, changed, rounds=8)
    pairs = len(changed.runs)
    assert order == (["slow", "fast", "fast", "slow"] * pairs)[: 2 * pairs] and 6 <= pairs <= 8
    found = conclude(base, changed, float("inf"))
    assert found.verdict == "accept" and found.why.endswith("results not checked")
    assert found.time is not None and 0.35 < found.time.gain < 0.5  # 40 ms of 91
    assert len(found.runs_before) == len(found.runs_after) == pairs


def test_results_that_cannot_be_compared_end_it_after_two_rounds(tmp_path: Path) -> None:
    base, changed = side(tmp_path, "base", "fast"), side(tmp_path, "with", "fast")
    assert len(turn(tmp_path, base, changed, rounds=8, tolerance=1e-4)) == 4
    found = conclude(base, changed, 1e-4)
    assert found.verdict == "undecided" and found.results is not None
    assert found.results.why == "the runs hold neither losses, detections nor accuracy"


def test_a_change_that_fails_is_rejected_with_its_last_line(tmp_path: Path) -> None:
    base, changed = side(tmp_path, "base", "fast"), side(tmp_path, "with", "broken")
    assert turn(tmp_path, base, changed, rounds=4) == ["fast", "broken"]
    found = conclude(base, changed, 1e-4)
    assert found.verdict == "reject" and "the disk is on fire" in found.why and found.time is None


def test_a_base_that_fails_is_an_error_that_names_the_log(tmp_path: Path) -> None:
    base, changed = side(tmp_path, "base", "broken"), side(tmp_path, "with", "fast")
    with pytest.raises(InputError, match="the disk is on fire") as error:
        turn(tmp_path, base, changed, rounds=4)
    assert "output.txt" in error.value.hint

"""`compare --repeat`: fresh processes in turns, stopped when the interval decides, and what that teaches."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from detscope.analyze.compare.variation import FILE_NAME, read_variations
from detscope.cli.main import app
from detscope.errors import InputError, UsageError
from detscope.report.progress import QuietProgress
from detscope.sessions.repeat import RepeatRequest, place_output, repeat_commands, split_commands

# a verb that needs no torch: it writes the run that its name asks for
VERB = """#!{python}
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from compared_runs import make_run
word, out, kind = sys.argv[1], Path(sys.argv[3]), sys.argv[4]
if kind == "broken":
    sys.exit("the disk is on fire")
seed = len(list(out.parent.rglob("run.json")))  # equal commands are told apart once in twenty draws
make_run(out, seed, {{"backbone": 25.0 if kind == "slow" else 0.0}}, steps=12)
with (out.parent / "order.txt").open("a") as order:
    order.write(kind + chr(10))
"""


@pytest.fixture
def verb(tmp_path: Path) -> str:
    root = Path(__file__).parents[2]
    file = tmp_path / "detscope"
    file.write_text(VERB.format(python=sys.executable, path=[str(root / "src"), str(root / "tests")]))
    file.chmod(0o755)
    return str(file)


def request(verb: str, first: str, second: str, runs: Path, rounds: int = 4) -> RepeatRequest:
    return RepeatRequest((verb, "train", first), (verb, "train", second), rounds, runs=runs, seed=1)


def test_a_large_difference_is_decided_early_and_both_take_turns(verb: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    found = repeat_commands(request(verb, "fast", "slow", runs, rounds=6), QuietProgress())
    assert found.step.verdict == "slower"
    assert found.modules[0].path == "backbone"
    rounds = found.step.runs[0]
    assert found.step.runs == (rounds, rounds) and 3 <= rounds < 6
    assert f"decided after {rounds} of at most 6 rounds" in found.notes
    order = next(runs.glob("compare-*/order.txt")).read_text().split()
    assert all(set(order[2 * turn : 2 * turn + 2]) == {"fast", "slow"} for turn in range(rounds))
    assert len({tuple(order[2 * turn : 2 * turn + 2]) for turn in range(rounds)}) == 2  # not always one first
    (learnt,) = read_variations(runs / FILE_NAME)
    assert learnt.runs == 2 * rounds
    assert {"step", "phase", "stage", "module"} <= {one.group for one in learnt.groups}


def test_equal_commands_are_not_told_apart_and_the_end_is_said(verb: str, tmp_path: Path) -> None:
    found = repeat_commands(request(verb, "fast", "fast", tmp_path / "runs", rounds=3), QuietProgress())
    assert found.step.verdict == "no difference seen"
    assert found.step.runs == (3, 3)
    assert any("after 3" in note for note in found.notes)


def test_a_command_that_fails_is_named_with_its_last_line(verb: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the disk is on fire") as error:
        repeat_commands(request(verb, "broken", "broken", tmp_path / "runs"), QuietProgress())
    assert "output.txt" in error.value.hint


def test_two_commands_are_split_at_the_dashes_and_write_where_they_are_told() -> None:
    words = ["detscope", "train", "a", "--", "python", "own.py", "--lr", "1"]
    first, second = split_commands(words)
    assert place_output(first, Path("o"))[-4:] == ["train", "--out", "o", "a"]
    assert place_output(second, Path("o"))[-6:] == ["run", "--out", "o", "own.py", "--lr", "1"]
    for wrong in (["detscope", "train"], ["--", "a"], ["a", "--"], ["a", "--", "b", "--", "c"]):
        with pytest.raises(UsageError, match="two commands"):
            split_commands(wrong)
    with pytest.raises(UsageError, match="records nothing"):
        place_output(("detscope", "show", "a"), Path("o"))
    with pytest.raises(UsageError, match="decides where runs go"):
        place_output(("detscope", "train", "a", "--out", "b"), Path("o"))


def test_two_commands_as_typed(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["compare", "--repeat", "3", "--json", "--fail-if", "stage.backbone > +10%"]
    words += ["--", verb, "train", "fast", "--", verb, "train", "slow"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 7, done.output
    one = json.loads(done.stdout)["comparisons"][0]
    assert one["step"]["verdict"] == "slower" and len(one["runs_before"]) == len(one["runs_after"]) == 3
    assert one["between"]["source"] == "measured in these runs"
    assert (tmp_path / "runs" / FILE_NAME).is_file()
    wrong = CliRunner().invoke(app, ["compare", "--repeat", "3", verb, "train"])
    assert wrong.exit_code == 2 and "two commands" in wrong.stderr

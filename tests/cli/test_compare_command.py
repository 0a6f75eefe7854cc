"""`detscope compare` as typed: outputs are written whatever a gate says, and `-` is standard output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from compared_runs import make_run
from detscope.cli.main import app

OLD_RUNS = Path(__file__).parents[1] / "old_runs"


def compare(*words: object):
    return CliRunner().invoke(app, ["compare", *map(str, words)])


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    slower = {"backbone": 25.0}
    return make_run(tmp_path / "runs", 1).folder, make_run(tmp_path / "runs", 2, slower).folder


def test_everything_asked_for_is_written_before_a_gate_fails(pair, tmp_path: Path) -> None:
    page, text = tmp_path / "page.html", tmp_path / "comment.md"
    done = compare(*pair, "--fail-if", "step_p50 > +5%", "--html", page, "--markdown", text, "--json")
    assert done.exit_code == 7
    assert "gate failed: step_p50 > +5%" in done.stderr
    assert json.loads(done.stdout)["failed"] == ["step_p50 > +5%"]
    assert "backbone" in page.read_text() and "**failed**" in text.read_text()


def test_a_gate_on_a_missing_figure_fails(pair) -> None:
    done = compare(*pair, "--fail-if", "memory.peak > +5%")
    assert done.exit_code == 7
    assert "these runs do not have it" in " ".join(done.stdout.split())
    assert compare(*pair, "--fail-if", "speed > +5%").exit_code == 2


def test_a_comment_for_a_pull_request_is_printed_alone_and_is_short(pair) -> None:
    done = compare(*pair, "--markdown", "-")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("### Slower: the step changed by") and len(lines) <= 40
    assert any(line.startswith("| `module backbone` |") for line in lines)
    assert compare(*pair, "--markdown", "-", "--json").exit_code == 2


def test_three_runs_are_a_trend_that_names_where_it_changed(tmp_path: Path) -> None:
    commits = ("a" * 40, "b" * 40, "b" * 40)
    runs = [
        make_run(
            tmp_path / str(number),
            number,
            {"backbone": 25.0 * (number > 0)},
            info={"environment": {"code": {"commit": commit, "files": None}}},
        ).folder
        for number, commit in enumerate(commits)
    ]
    done = compare(*runs, "--by", "commit", "--json")
    assert done.exit_code == 0, done.output
    trend = json.loads(done.stdout)["trend"]
    assert [point["commit"] for point in trend["points"]] == ["a" * 10, "b" * 10]
    assert len(trend["points"][1]["runs"]) == 2
    assert any(text.startswith("step_p50 slower by") and text.endswith("b" * 10) for text in trend["turns"])
    shown = compare(*runs)
    assert "Trend" in shown.stdout or "trend" in shown.stdout
    assert len(json.loads(compare(*runs, "--json").stdout)["trend"]["points"]) == 3
    assert compare(*runs, "--by", "size").exit_code == 2


def test_what_differs_comes_first_and_names_the_commit(tmp_path: Path) -> None:
    runs = [
        make_run(
            tmp_path, seed, info={"batch_size": batch, "environment": {"code": {"commit": commit}}}
        ).folder
        for seed, batch, commit in ((1, 2, "a" * 40), (2, 4, "b" * 40))
    ]
    keys = [row["key"] for row in json.loads(compare(*runs, "--json").stdout)["comparisons"][0]["settings"]]
    assert keys == ["environment.code.commit", "batch_size"]


@pytest.mark.parametrize("verb", ["train", "infer", "eval", "import", "ranks", "script"])
def test_runs_of_every_verb_are_compared_by_what_they_have(verb: str) -> None:
    done = compare(OLD_RUNS / verb, OLD_RUNS / verb, "--json")
    assert done.exit_code == 0, done.output
    one = json.loads(done.stdout)["comparisons"][0]
    assert one["accuracy" if verb == "eval" else "device" if verb == "import" else "stages"]
    assert one["verdict"].startswith("no difference seen")

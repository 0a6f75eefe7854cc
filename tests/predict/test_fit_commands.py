"""`detscope fit` and `detscope score` of sweeps' stores, and what a user can get wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_stores import identity, keep, listed, rows_of
from typer.testing import CliRunner

from detscope.cli.main import app
from detscope.sweep.outcome import Outcome


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    listed(tmp_path)
    return keep(tmp_path / "plan.db", rows_of())


def run(*args: str) -> Any:
    return CliRunner().invoke(app, args)


def test_fit_and_score_of_a_store_from_the_command_line(store: Path) -> None:
    keep(store, [(identity("one-0", 256), Outcome("timeout"))])
    fitted = run("fit", "plan.db", "--out", "cpu.model", "--method", "physical")
    assert fitted.exit_code == 0, fitted.stderr
    assert "30 rows of 2 networks" in fitted.stdout
    assert "left out 1 row: failed: timeout" in " ".join(fitted.stdout.split())
    assert "threads 1" in fitted.stdout
    scored = run("score", "plan.db", "--method", "physical", "--protocol", "unseen-networks", "--json")
    assert scored.exit_code == 0, scored.stderr
    found = json.loads(scored.stdout)
    assert found["left_out"] == {"failed: timeout": 1}
    assert found["measured_interval"] == {"memory": None, "latency": pytest.approx(0.02)}
    assert {row["target"] for row in found["scores"]} == {"memory", "latency"}
    args = ("--method", "physical", "--target", "latency", "--picture", "scores.svg")
    drawn = run("score", "plan.db", *args)
    assert drawn.exit_code == 0, drawn.stderr
    assert "medians are known to 2.0 %" in " ".join(drawn.stdout.split())
    assert (store.parent / "scores.svg").read_text().count("<svg") == 1


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ("fit --out x.model", 2, "nothing to fit from"),
        ("fit plan.db --out absent/x.model", 2, "--out: no folder absent"),
        ("fit absent.db --out x.model", 3, "absent.db is not there"),
        ("fit empty --out x.model", 3, "neither a run nor a folder of runs or stores"),
        ("fit few.db --out x.model", 3, "latency: 2 rows have it, 9 are the fewest"),
        ("score few.db", 3, "too few to score"),
        ("fit x.pickle --out x.model", 3, "pickles are never opened"),
        ("fit plan.db --out x.model --where speed=1", 2, "'speed=1' is no condition"),
        ("fit plan.db --out x.model --transfer x.pickle", 3, "is a pickle"),
        ("fit --out x.model --transfer x.model", 2, "--transfer needs a few steps"),
        ("fit plan.db --out x.model --layer-times plan.db", 3, "plan.db"),
        ("fit plan.db --out x.model --microbench --layer-times a.csv", 2, "choose one of them"),
        ("score plan.db --protocol unseen-device", 3, "needs rows of two devices"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line_and_a_hint(
    store: Path, args: str, code: int, message: str
) -> None:
    (store.parent / "empty").mkdir()
    (store.parent / "x.pickle").write_bytes(b"\x80\x04.")
    keep(store.parent / "few.db", rows_of()[:2])
    found = run(*args.split())
    assert (found.exit_code, found.stdout) == (code, "")
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_protocols_that_the_rows_do_not_allow_are_left_out_and_said(store: Path) -> None:
    one = keep(store.parent / "one.db", rows_of()[:15])
    found = run("score", str(one), "--method", "physical", "--target", "latency", "--json")
    assert found.exit_code == 0, found.stderr
    scores = json.loads(found.stdout)
    assert [row["protocol"] for row in scores["scores"]] == ["unseen-levels"]
    assert "too few networks" in scores["notes"][-1]


def test_one_network_only_is_said_in_one_line(store: Path) -> None:
    one = keep(store.parent / "one.db", rows_of()[:15])
    found = run("fit", str(one), "--out", "x.model", "--method", "physical", "--target", "latency")
    assert found.exit_code == 0, found.stderr
    assert "one network only (one): nothing is known about any other" in " ".join(found.stdout.split())

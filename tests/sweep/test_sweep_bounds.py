"""Plans and stores from elsewhere are answered or refused at once, whatever they say."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from test_sweep_store import identity

from detscope.cli.main import app
from detscope.errors import InputError, SettingsError, UsageError
from detscope.machine.limits import parse_size
from detscope.sweep.outcome import Outcome, classify_exception
from detscope.sweep.plan import load_plan
from detscope.sweep.status import summarize_store
from detscope.sweep.store import SweepStore, read_rows

NUMBERS = ", ".join(map(str, range(1, 101)))


def plan_file(folder: Path, text: str) -> Path:
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_plan_of_a_hundred_million_trials_is_counted_and_never_made(tmp_path: Path) -> None:
    axes = "\n".join(f"{name} = [{NUMBERS}]" for name in ("batch_size", "seed", "threads", "num_workers"))
    path = plan_file(tmp_path, f'[axes]\nnetwork = "a"\n{axes}\n[[exclude]]\nbatch_size = ">= 2"\n')
    with pytest.raises(UsageError, match="100,000,000 trials, the limit is 200,000") as caught:
        load_plan(path)
    assert "DETSCOPE_LIMIT_PLAN_TRIALS" in caught.value.hint


def test_rows_of_trials_count_together_with_their_repetitions(tmp_path: Path) -> None:
    rows = f'[[trials]]\nnetwork = "a"\nbatch_size = [{NUMBERS}]\nseed = [{NUMBERS}]\n' * 3
    path = plan_file(tmp_path, f"[sweep]\nrepetitions = 10\n{rows}")
    with pytest.raises(UsageError, match="300,000 trials"):
        load_plan(path)


def test_excludes_are_compared_within_a_limit(tmp_path: Path) -> None:
    rules = f"[[exclude]]\nbatch_size = [{NUMBERS}]\n" * 100
    path = plan_file(
        tmp_path, f'[axes]\nnetwork = "a"\nbatch_size = [{NUMBERS}]\nseed = [{NUMBERS}]\n{rules}'
    )
    with pytest.raises(UsageError, match="100,000,000 comparisons"):
        load_plan(path)


def test_a_pattern_of_folders_does_not_walk_the_disk(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\*\* is not a pattern"):
        load_plan(plan_file(tmp_path, '[axes]\nnetwork = "/**/*"\n'))


def test_of_thousands_of_problems_the_first_hundred_are_told(tmp_path: Path) -> None:
    keys = "\n".join(f"batch_sise{number} = 1" for number in range(5000))
    with pytest.raises(SettingsError) as caught:
        load_plan(plan_file(tmp_path, f"[axes]\n{keys}\n"))
    assert len(caught.value.problems) == 100


def test_a_size_beyond_every_machine_is_no_size() -> None:
    assert parse_size("9" * 400 + "GiB") is None
    assert parse_size(10**30) is None
    assert parse_size("4GiB") == 4 << 30


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    with SweepStore(path, create=True) as opened:
        opened.keep_environment({"processor": "one"})
        opened.record_attempt(identity(1), Outcome("ok", result={"step_ms": 1.0}))
    return path


def tamper(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


RECURSIVE = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS attempt_id FROM n"


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["ALTER TABLE attempts RENAME TO other", f"CREATE VIEW attempts AS {RECURSIVE}"], "not as a sweep"),
        (["DROP TABLE environments", f"CREATE VIEW environments AS {RECURSIVE}"], "view environments"),
        (
            ["CREATE TRIGGER t AFTER INSERT ON attempts BEGIN DELETE FROM attempts; END"],
            "not as a sweep makes it: trigger t",
        ),
        (["DROP TABLE planned"], "tables are missing"),
        (["ALTER TABLE attempts ADD COLUMN more_of_it AS (hex(zeroblob(1e8)))"], "table attempts"),
        (["UPDATE attempts SET batch_size = 'many'"], "values of other types"),
        (["UPDATE attempts SET device = x'00ff'"], "values of other types"),
        (["UPDATE attempts SET step_ms = 9e999"], "values of other types"),
        (["UPDATE attempts SET batch_size = -4"], "values of other types"),
        (["UPDATE attempts SET more = '[1'"], "is not JSON"),
        (["UPDATE environments SET facts = '[]'"], "is not an object"),
    ],
)
def test_a_store_that_is_not_as_a_sweep_makes_it_is_refused(
    store: Path, statements: list[str], words: str
) -> None:
    tamper(store, *statements)
    with pytest.raises(InputError, match=words):
        read_rows(store)


def test_a_store_as_a_sweep_makes_it_is_read(store: Path) -> None:
    assert [row["step_ms"] for row in read_rows(store)] == [1.0]
    with SweepStore(store) as opened:
        assert summarize_store(opened)["done"] == 1


def test_a_store_of_more_rows_than_the_limit_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETSCOPE_LIMIT_STORE_ROWS", "1")
    with SweepStore(store) as opened:
        opened.record_attempt(identity(2), Outcome("ok", result={"step_ms": 1.0}))
    with pytest.raises(InputError, match="attempts: 2 rows, the limit is 1"):
        SweepStore(store)


def test_an_image_size_that_nobody_can_tell_a_factory_is_refused_before_the_first_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text("def make(): raise AssertionError('a trial was begun')\n")
    networks = f'["{tmp_path}/mine.py:make", "squeezenet1_1", "{tmp_path}/mine.py:other"]'
    path = plan_file(tmp_path, f"[axes]\nnetwork = {networks}\nimage_size = [64, 96]\n")
    with pytest.raises(SystemExit) as ended:
        app(["sweep", str(path)], prog_name="detscope")
    told = capsys.readouterr().err
    assert ended.value.code == 2, told
    for name in ("make", "other"):
        assert told.count(f"error: image_size is not known for {tmp_path}/mine.py:{name}\n") == 1
    assert "hint: let the factory set it" in told
    assert "squeezenet1_1" not in told


def test_an_exception_without_words_is_an_outcome_by_its_name() -> None:
    class Speechless(RuntimeError):
        def __str__(self) -> str:
            raise ValueError("no words")

    outcome = classify_exception(Speechless())
    assert (outcome.kind, outcome.message) == ("error", "Speechless:")

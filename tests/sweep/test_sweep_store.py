"""The store: nothing acknowledged is lost, nothing is mixed, nothing damaged is overwritten."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_trial import allow
from sweep_samples import run_plan, write_plan
from test_trial_endings import fake_processes, start, until

from detscope.errors import InputError, SettingsError, UsageError
from detscope.sweep.exchange import merge_stores
from detscope.sweep.outcome import Outcome
from detscope.sweep.status import summarize_store
from detscope.sweep.store import SweepStore, read_rows


def identity(number: int, **other: Any) -> dict[str, Any]:
    return {
        "trial": f"trial-{number}",
        "configuration": f"configuration-{number}",
        "device": "cpu",
        "environment": "here",
        "repetition": 0,
        "network": "net",
        "stage": "training",
        "batch_size": max(number, 1),
        "variables": "latency",
        "fingerprint": "name:net",
    } | other


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_sweep_store import identity
from detscope.sweep.outcome import Outcome
from detscope.sweep.store import SweepStore
with SweepStore(Path({path!r}), create=True) as store:
    for number in range(250):
        outcome = Outcome("ok", result={{"step_ms": 1.0}})
        store.record_attempt(identity(250 * int(sys.argv[1]) + number), outcome)
"""


@pytest.mark.processes
def test_four_writers_at_once_lose_nothing_and_none_is_locked_out(tmp_path: Path) -> None:
    code = WRITER.format(folder=str(Path(__file__).parent), path=str(tmp_path / "all.db"))
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(number)], stderr=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    for writer in writers:
        _, words = writer.communicate(timeout=900)
        assert writer.returncode == 0, words
    rows = read_rows(tmp_path / "all.db")
    assert len(rows) == 1000
    assert {row["trial"] for row in rows} == {f"trial-{number}" for number in range(1000)}


def test_a_result_that_comes_late_is_kept_apart(tmp_path: Path) -> None:
    with SweepStore(tmp_path / "a.db", create=True) as store:
        assert (
            store.record_attempt(identity(1), Outcome("ok", result={"step_ms": 2.0}), attempt=2) == "accepted"
        )
        assert (
            store.record_attempt(identity(1), Outcome("ok", result={"step_ms": 9.0}), attempt=1)
            == "duplicate"
        )
        # the same by its parts, whatever its key
        late = store.record_attempt(identity(1, trial="other"), Outcome("ok", result={"step_ms": 8.0}))
        assert late == "duplicate"
        assert [row["step_ms"] for row in store.read_attempts()] == [2.0]
        assert [row["step_ms"] for row in store.read_attempts("duplicate")] == [9.0, 8.0]
        assert summarize_store(store)["duplicates"] == 2


def test_environments_and_repetitions_are_results_of_their_own(tmp_path: Path) -> None:
    with SweepStore(tmp_path / "a.db", create=True) as store:
        store.record_attempt(identity(1), Outcome("ok"))
        for number, other in enumerate(({"environment": "there"}, {"repetition": 1}, {"device": "cuda:0"})):
            assert store.record_attempt(identity(1, trial=f"t{number}", **other), Outcome("ok")) == "accepted"


@pytest.mark.parametrize("damage", ["header", "middle", "names", "text"])
def test_a_damaged_store_is_refused_and_left_as_it_is(tmp_path: Path, damage: str) -> None:
    plan = write_plan(tmp_path, 'network = ["a", "b"]')
    run_plan(plan)
    path = tmp_path / "plan.db"
    content = bytearray(path.read_bytes())
    if damage == "header":
        content[:16] = b"x" * 16
    elif damage == "middle":
        content[1024 : len(content) - 512] = os.urandom(len(content) - 1536)
    elif damage == "names":  # SQLite's complaint about them is no text that Python can read
        content = content.replace(b"CREATE TABLE", b"CREATE \xabABLE")
    else:
        content = bytearray(b"not,a,database\n")
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged and was left as it is"):
        run_plan(plan, resume=True)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "plan.db")
    other.execute("CREATE TABLE mine (a)")
    other.commit()
    other.close()
    with pytest.raises(InputError, match="a database of something else"):
        run_plan(write_plan(tmp_path, 'network = "a"'))


def test_the_same_plan_again_runs_nothing_and_a_longer_one_asks_for_resume(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, 'network = ["a", "b"]')
    assert run_plan(plan)["ran"] == 2
    assert run_plan(plan)["ran"] == 0
    longer = write_plan(tmp_path, 'network = ["a", "b", "c"]')
    with pytest.raises(UsageError, match="holds 2 of 3 trials already"):
        run_plan(longer)
    assert run_plan(longer, resume=True)["ran"] == 1


@pytest.mark.parametrize("changed", ["measure", "network", "torch"])
def test_resuming_with_something_changed_is_refused_with_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    (tmp_path / "nets" / "a").mkdir(parents=True)
    weights = tmp_path / "nets" / "a" / "weights"
    weights.write_text("1")
    run_plan(write_plan(tmp_path, 'network = "nets/a"\nbatch_size = [1, 2]'))
    more = ""
    if changed == "measure":
        more, words = "[measure]\nmax_steps = 99", "measure.max_steps: was 200, is 99"
    elif changed == "network":
        weights.write_text("2")
        words = r"networks.nets/a: was folder:\w+, is folder:\w+"
    else:
        from detscope.sweep import keys

        real = keys.package_version
        monkeypatch.setattr(keys, "package_version", lambda name: "9.9" if name == "torch" else real(name))
        words = "environment.here.packages.torch: was .*, is 9.9"
    plan = write_plan(tmp_path, 'network = "nets/a"\nbatch_size = [1, 2, 4]', more)
    with pytest.raises(SettingsError, match=words):
        run_plan(plan, resume=True)
    assert len(read_rows(tmp_path / "plan.db", role=None)) == 2


@pytest.mark.processes
def test_thirty_trials_killed_twenty_times_are_thirty_rows(tmp_path: Path) -> None:
    batches = list(range(1, 31))
    plan = write_plan(tmp_path, f'network = "allowed"\nbatch_size = {batches}')
    chance = random.Random(8)
    path = tmp_path / "plan.db"
    acknowledged: set[str] = set()
    kills = 0
    while kills < 20 or not seen(path):
        allow(min(kills, 25))  # however long a kill takes to come, there is work left
        sweep = start(plan)
        # from before the store is opened to the middle of a trial; on a busy machine that comes later
        time.sleep(chance.uniform(0.05, 0.9 + 0.2 * max(0, kills - 20)))
        if chance.random() < 0.5:
            acknowledged |= seen(path)
        sweep.send_signal(signal.SIGKILL)
        sweep.communicate()
        kills += 1
    until(lambda: not fake_processes())
    allow(30)
    assert 0 < len(read_rows(path)) < 30  # the kills came while there was work
    done = start(plan)
    _, words = done.communicate(timeout=900)
    assert done.returncode == 0, words
    rows = read_rows(path, role=None)
    assert sorted(row["batch_size"] for row in rows if row["role"] == "accepted") == batches
    assert {row["kind"] for row in rows} == {"ok"}
    assert acknowledged <= {row["attempt_id"] for row in rows}
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


def seen(path: Path) -> set[str]:
    """Rows that somebody else can read have been acknowledged."""
    if not path.exists() or not path.stat().st_size:
        return set()
    database = sqlite3.connect(path, timeout=900)
    try:
        return {row[0] for row in database.execute("SELECT attempt_id FROM attempts")}
    except sqlite3.OperationalError as error:
        assert "no such table" in str(error)
        return set()
    finally:
        database.close()


@pytest.mark.processes
def test_only_one_sweep_at_a_time_uses_a_store(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, 'network = "hangs"')
    sweep = start(plan)
    until(lambda: fake_processes())
    with pytest.raises(UsageError, match="another sweep is running"):
        run_plan(plan)
    sweep.kill()
    sweep.communicate()
    assert run_plan(write_plan(tmp_path, 'network = "b"'))["ran"] == 1


def test_merged_stores_have_every_row_once_and_duplicates_apart(tmp_path: Path) -> None:
    with SweepStore(tmp_path / "a.db", create=True) as store:
        store.record_attempt(identity(1), Outcome("ok", result={"step_ms": 1.0}))
        store.record_attempt(identity(2), Outcome("timeout"))
    copy = (tmp_path / "a.db").read_bytes()
    (tmp_path / "copy.db").write_bytes(copy)
    with SweepStore(tmp_path / "b.db", create=True) as store:
        store.record_attempt(identity(1), Outcome("ok", result={"step_ms": 7.0}))
        store.record_attempt(identity(3), Outcome("ok", result={"step_ms": 3.0}))
    done = merge_stores([tmp_path / name for name in ("a.db", "b.db", "copy.db")], tmp_path / "c.db")
    assert (done.rows, done.duplicates, done.known) == (4, 1, 2)
    rows = read_rows(tmp_path / "c.db")
    assert [(row["batch_size"], row["step_ms"]) for row in rows] == [(1, 1.0), (2, None), (3, 3.0)]
    assert (tmp_path / "a.db").read_bytes() == copy
    with pytest.raises(UsageError, match="exists already"):
        merge_stores([tmp_path / "a.db", tmp_path / "b.db"], tmp_path / "c.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "b.db", "c.db", "copy.db"]


def test_a_finished_store_is_one_file(tmp_path: Path) -> None:
    run_plan(write_plan(tmp_path, 'network = "a"'))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.db", "plan.toml"]

"""Every limit on what comes from elsewhere: told, documented, and raised by its variable."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from detscope.errors import InputError, UsageError
from detscope.limits import LIMITS, limit_variable, over_limit, read_limit, require_within

DOCUMENT = Path(__file__).parents[1] / "docs" / "limits.md"


def documented() -> str:
    rows = [f"| {name} | {known.value:,} {known.unit} | {known.reason} |" for name, known in LIMITS.items()]
    return "\n".join(["| limit | value | why |", "|---|---|---|", *rows]) + "\n"


def test_the_page_of_limits_is_the_table_in_the_code():
    assert documented() in DOCUMENT.read_text(encoding="utf-8")


def test_a_refusal_names_the_limit_its_reason_and_how_to_raise_it():
    refusal = over_limit("plan_trials", "plan.toml", 10**8, UsageError)
    assert refusal.message == "plan.toml: 100,000,000 trials, the limit is 200,000"
    assert "days" in refusal.hint
    assert "DETSCOPE_LIMIT_PLAN_TRIALS=N" in refusal.hint


def test_a_limit_is_raised_by_its_variable(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(InputError):
        require_within("yaml_nodes", 300_000, "data.yaml")
    monkeypatch.setenv(limit_variable("yaml_nodes"), "300000")
    require_within("yaml_nodes", 300_000, "data.yaml")
    monkeypatch.setenv(limit_variable("yaml_nodes"), "many")
    with pytest.raises(UsageError, match="DETSCOPE_LIMIT_YAML_NODES='many' is not a whole number"):
        read_limit("yaml_nodes")


ENDLESS = """
import sqlite3, threading
from detscope.machine.sqlite_watch import QueryWatch
connection = sqlite3.connect(":memory:")
watch = QueryWatch(connection, "a file")
threading.Timer(0.3, print, ["begun"], {"flush": True}).start()  # by then the query is under way
with watch.watch_query():
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    )
"""


def test_a_query_that_never_ends_hears_ctrl_c():
    child = subprocess.Popen(
        [sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        os.kill(child.pid, signal.SIGINT)
        _, told = child.communicate()
    assert "KeyboardInterrupt" in told.splitlines()[-1]


def test_a_query_without_a_row_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch):
    from detscope.machine.sqlite_watch import QueryWatch

    monkeypatch.setenv(limit_variable("database_seconds"), "0")
    connection = sqlite3.connect(":memory:")
    watch = QueryWatch(connection, "a file")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with (
        pytest.raises(InputError, match="a file: a query without a row: more than 0 seconds"),
        watch.watch_query(),
    ):
        connection.execute(endless)
    connection.close()

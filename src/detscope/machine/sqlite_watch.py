"""Queries on SQLite files from elsewhere: they hear Ctrl-C, and end where no row comes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic

from detscope.limits import over_limit, read_limit

_INSTRUCTIONS = 20_000  # of SQLite's machine between two looks: some tenths of a millisecond


class QueryWatch:
    """Looks after the queries of one connection."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._name = name
        self._deadline = inf
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, read_limit("database_value_bytes"))
        # SQLite holds signals up for as long as it works; a call of Python's lets them through
        connection.set_progress_handler(lambda: monotonic() > self._deadline, _INSTRUCTIONS)
        connection.execute("PRAGMA trusted_schema = OFF")

    @contextmanager
    def watch_query(self) -> Iterator[None]:
        """While one row, or one piece of many, is waited for."""
        self._deadline = monotonic() + read_limit("database_seconds")
        try:
            yield
        except sqlite3.OperationalError as error:
            raise self.explain_error(error) from error
        finally:
            self._deadline = inf

    def explain_error(self, error: sqlite3.OperationalError) -> BaseException:
        """What an interrupted query means: too long without a row, or a Ctrl-C that SQLite swallowed."""
        if str(error) != "interrupted":
            return error
        if monotonic() > self._deadline:
            return over_limit("database_seconds", f"{self._name}: a query without a row")
        return KeyboardInterrupt()

"""An SQLite file opened so that it cannot change, and its tables fetched in bulk, column by column."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from detscope.errors import InputError
from detscope.ingest.files import RecordedFile
from detscope.limits import over_limit
from detscope.machine.sqlite_watch import QueryWatch

ROWS_AT_ONCE = 100_000
# a damaged schema also shows as text that cannot be decoded, in SQLite's own message
_FAILURES = (sqlite3.Error, OverflowError, MemoryError, UnicodeError)
_AGAIN = "export it again: nsys export --type=sqlite REPORT.nsys-rep"


class Database:
    """Tables by name; what is not there is empty, and a damaged page is an InputError."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self.name = name
        self._connection = connection
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._watch = QueryWatch(connection, name)
        # table -> lower-case column -> column as it is spelt; views are left alone
        self.columns: dict[str, dict[str, str]] = {}
        for (table,) in next(self._read_pages("SELECT name FROM sqlite_master WHERE type = 'table'"), []):
            rows = next(self._read_pages(f"PRAGMA table_info({_quote_name(str(table))})"), [])
            self.columns[str(table)] = {str(row[1]).lower(): str(row[1]) for row in rows}

    def read_chunks(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
        """The rows in pieces of bounded size, as columns; a column the file lacks is all None."""
        if table not in self.columns:
            return
        spelt = self.columns[table]
        wanted = ", ".join(_quote_name(spelt[c.lower()]) if c.lower() in spelt else "NULL" for c in columns)
        for rows in self._read_pages(f"SELECT {wanted} FROM {_quote_name(table)}"):
            yield dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))

    def read_frames(self, table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """As `read_chunks`, for columns of whole numbers; what is no whole number is null."""
        for chunk in self.read_chunks(table, columns):
            yield pl.DataFrame({name: as_integers(values) for name, values in chunk.items()})

    def count_rows(self, table: str) -> int:
        """Rows of a table; 0 without it."""
        if table not in self.columns:
            return 0
        return int(next(self._read_pages(f"SELECT COUNT(*) FROM {_quote_name(table)}"))[0][0])

    def read_texts(self, table: str, key: str, value: str) -> dict[int, str]:
        """Number -> text, as `StringIds` keeps them."""
        found: dict[int, str] = {}
        for chunk in self.read_chunks(table, (key, value)):
            for number, text in zip(chunk[key], chunk[value], strict=True):
                if isinstance(number, int) and isinstance(text, str):
                    found[number] = text
        return found

    def _read_pages(self, sql: str) -> Iterator[list[tuple[Any, ...]]]:
        cursor = None
        while True:
            try:
                with self._watch.watch_query():
                    cursor = cursor or self._connection.execute(sql)
                    rows = cursor.fetchmany(ROWS_AT_ONCE)
            except _FAILURES as error:
                raise _damage_error(self.name, error) from error
            if not rows:
                return
            yield rows


def _damage_error(name: str, error: BaseException) -> InputError:
    return InputError(f"{name} is damaged: SQLite says {str(error).splitlines()[0][:150]!r}", _AGAIN)


def as_integers(values: list[Any]) -> pl.Series:
    """Whole numbers; text and bytes in their place (a damaged file) become null."""
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError, ValueError, pl.exceptions.PolarsError):
        whole = (int(v) if isinstance(v, float) and v.is_integer() and abs(v) < 2**62 else v for v in values)
        return pl.Series([v if isinstance(v, int) else None for v in whole], dtype=pl.Int64)


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open read-only and immutable: no lock, no journal, no byte changes, also on a read-only disk."""
    with _unpack_file(path) as plain:
        try:
            uri = plain.resolve().as_uri() + "?mode=ro&immutable=1"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        except sqlite3.Error as error:
            raise _damage_error(path.name, error) from error
        with closing(connection):
            yield Database(connection, path.name)


@contextmanager
def _unpack_file(path: Path) -> Iterator[Path]:
    """The file itself, or its unpacked copy in a folder that is removed again."""
    recorded = RecordedFile(path)
    if not recorded.is_packed:
        yield path
        return
    most = recorded.most_bytes
    with tempfile.TemporaryDirectory(prefix="detscope-") as folder:
        plain = Path(folder) / "export.sqlite"
        with plain.open("wb") as target:
            for piece in recorded.read_pieces(1 << 20):
                target.write(piece)
                if target.tell() > most:
                    raise over_limit("recording_ratio", path.name)
        if recorded.error:
            raise InputError(f"{path.name} cannot be unpacked: {recorded.error}", "copy the file again")
        yield plain


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

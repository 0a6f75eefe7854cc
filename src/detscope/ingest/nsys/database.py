"""An SQLite file opened so that it cannot change, and its tables fetched in bulk, column by column."""

from __future__ import annotations

import gzip
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from detscope.errors import InputError
from detscope.ingest.files import is_packed, most_unpacked_bytes
from detscope.limits import over_limit
from detscope.machine.sqlite_watch import QueryWatch

ROWS_AT_ONCE = 100_000
_PIECE = 1 << 20
SQLITE_MAGIC = b"SQLite format 3\x00"
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
        self.columns = self._find_columns()

    def _find_columns(self) -> dict[str, dict[str, str]]:
        """Table -> lower-case column -> column as it is spelt; views are left alone."""
        names = [str(row[0]) for row in self._rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {}
        for name in names:
            rows = self._rows(f"PRAGMA table_info({_quoted(name)})")
            found[name] = {str(row[1]).lower(): str(row[1]) for row in rows}
        return found

    def has(self, table: str) -> bool:
        """Whether the file has this table."""
        return table in self.columns

    def has_column(self, table: str, column: str) -> bool:
        """Whether the table is there and has this column."""
        return column.lower() in self.columns.get(table, {})

    def chunks(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
        """The rows in pieces of bounded size, as columns; a column the file lacks is all None."""
        if not self.has(table):
            return
        spelt = self.columns[table]
        wanted = ", ".join(_quoted(spelt[c.lower()]) if c.lower() in spelt else "NULL" for c in columns)
        cursor = self._execute(f"SELECT {wanted} FROM {_quoted(table)}")
        while rows := self._fetch(cursor):
            yield dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))

    def frames(self, table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """As `chunks`, for columns of whole numbers; what is no whole number is null."""
        for chunk in self.chunks(table, columns):
            yield pl.DataFrame({name: integers(values) for name, values in chunk.items()})

    def count(self, table: str) -> int:
        """Rows of a table; 0 without it."""
        return int(self._rows(f"SELECT COUNT(*) FROM {_quoted(table)}")[0][0]) if self.has(table) else 0

    def texts(self, table: str, key: str, value: str) -> dict[int, str]:
        """Number -> text, as `StringIds` keeps them."""
        found: dict[int, str] = {}
        for chunk in self.chunks(table, (key, value)):
            for number, text in zip(chunk[key], chunk[value], strict=True):
                if isinstance(number, int) and isinstance(text, str):
                    found[number] = text
        return found

    def _execute(self, sql: str) -> sqlite3.Cursor:
        try:
            with self._watch.waiting():
                return self._connection.execute(sql)
        except _FAILURES as error:
            raise damaged(self.name, error) from error

    def _fetch(self, cursor: sqlite3.Cursor) -> list[tuple[Any, ...]]:
        try:
            with self._watch.waiting():
                return cursor.fetchmany(ROWS_AT_ONCE)
        except _FAILURES as error:
            raise damaged(self.name, error) from error

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._fetch(self._execute(sql))


def damaged(name: str, error: BaseException) -> InputError:
    """One line about a file that SQLite cannot read."""
    return InputError(f"{name} is damaged: SQLite says {str(error).splitlines()[0][:150]!r}", _AGAIN)


def integers(values: list[Any]) -> pl.Series:
    """Whole numbers; text and bytes in their place (a damaged file) become null."""
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError, ValueError, pl.exceptions.PolarsError):
        whole = (int(v) if isinstance(v, float) and v.is_integer() and abs(v) < 2**62 else v for v in values)
        return pl.Series([v if isinstance(v, int) else None for v in whole], dtype=pl.Int64)


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open read-only and immutable: no lock, no journal, no byte changes, also on a read-only disk."""
    with _unpacked(path) as plain:
        try:
            uri = plain.resolve().as_uri() + "?mode=ro&immutable=1"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        except sqlite3.Error as error:
            raise damaged(path.name, error) from error
        with closing(connection):
            yield Database(connection, path.name)


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """The file itself, or its unpacked copy in a folder that is removed again."""
    if not is_packed(path):
        yield path
        return
    most = most_unpacked_bytes(path)
    with tempfile.TemporaryDirectory(prefix="detscope-") as folder:
        plain = Path(folder) / "export.sqlite"
        try:
            with gzip.open(path, "rb") as source, plain.open("wb") as target:
                while piece := source.read(_PIECE):
                    target.write(piece)
                    if target.tell() > most:
                        raise over_limit("recording_ratio", path.name)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path.name} cannot be unpacked: {error}", "copy the file again") from error
        yield plain


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

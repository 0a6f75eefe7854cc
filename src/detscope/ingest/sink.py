"""What a reader of recorded files is, and where it puts what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from detscope.runs.schema import TABLES
from detscope.runs.writer import polars_schema

Columns = pl.DataFrame | Mapping[str, Any]

HEAD_BYTES = 65536


@dataclass(frozen=True)
class Format:
    """One kind of file. `sniff` sees the first `HEAD_BYTES` bytes, unpacked, and decides by content."""

    name: str
    sniff: Callable[[bytes, Path], bool]
    read: Callable[[Path, Sink], None]


@dataclass
class Sink:
    """Takes what a reader found in one file: column chunks, remarks, counts and facts.

    A reader raises `detscope.errors.InputError` when nothing in the file is usable.
    """

    write: Callable[[str, pl.DataFrame], None]
    rank: int = 0  # of this file; readers that learn it from the file set it before they add rows
    source: str = ""  # the file's name, without its folder
    info: dict[str, Any] = field(default_factory=dict)  # goes into run.json under "sources"
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def add(self, table: str, columns: Columns) -> None:
        """Add rows to a table of the schema; columns that are left out are null, `rank` is the file's."""
        frame = complete(table, columns, self.rank)
        if frame.height:
            self.rows[table] = self.rows.get(table, 0) + frame.height
            self.write(table, frame)

    def note(self, text: str) -> None:
        """Something the user should know about the file; said once."""
        if text not in self.notes:
            self.notes.append(text)

    def cannot_tell(self, text: str) -> None:
        """A figure this file cannot give, and why: "step times: the file has no step marks"."""
        if text not in self.unknown:
            self.unknown.append(text)

    def count(self, what: str, n: int = 1) -> None:
        """Add to a count of what was dropped, clipped or left unlinked; zero is not kept."""
        if n:
            self.counts[what] = self.counts.get(what, 0) + int(n)


def complete(table: str, columns: Columns, rank: int | None = None) -> pl.DataFrame:
    """A frame with exactly the columns of the table, in its order and types."""
    schema = polars_schema(table)
    unknown = set(columns.columns if isinstance(columns, pl.DataFrame) else columns) - set(schema)
    if unknown:
        raise ValueError(f"table {table!r} has no column {', '.join(sorted(unknown))}")
    frame = columns if isinstance(columns, pl.DataFrame) else pl.DataFrame(dict(columns), strict=False)
    if not frame.height:
        return pl.DataFrame(schema=schema)
    return frame.select(
        pl.col(name).cast(dtype, strict=False)
        if name in frame.columns
        else pl.lit(rank if name == "rank" else None, dtype=dtype).alias(name)
        for name, dtype in schema.items()
    )


def tables() -> Sequence[str]:
    """Names a sink takes."""
    return tuple(TABLES)

"""What a format of recorded files is, and where its reader puts what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from detscope.traces.tables import complete_columns


@dataclass(frozen=True)
class Format:
    """One kind of file: a part in `ingest/formats`, or of an installed package (`detscope.formats`).

    `recognize` sees the first bytes of a file, unpacked, and decides by content, never by name. `read` puts
    what it finds into the sink, and raises `detscope.errors.InputError` when nothing in the file is usable.
    """

    name: str
    recognize: Callable[[bytes, Path], bool]
    read: Callable[[Path, Sink], None]
    order: int | None = None  # formats are tried from the smallest on; without one, after all that have one


@dataclass
class Sink:
    """Takes what a reader found in one file: column chunks, remarks, counts and facts."""

    write: Callable[[str, pl.DataFrame], None]
    rank: int = 0  # of this file; readers that learn it from the file set it before they add rows
    info: dict[str, Any] = field(default_factory=dict)  # goes into run.json under "sources"
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    damage: set[str] = field(default_factory=set)  # counts that mean: the file is not whole

    def add_rows(self, table: str, columns: pl.DataFrame | Mapping[str, Any]) -> None:
        """Add rows to a table of the schema; columns that are left out are null, `rank` is the file's."""
        frame = columns if isinstance(columns, pl.DataFrame) else pl.DataFrame(dict(columns), strict=False)
        complete = complete_columns(table, frame, self.rank)
        if complete.height:
            self.rows[table] = self.rows.get(table, 0) + complete.height
            self.write(table, complete)

    def add_note(self, text: str) -> None:
        """Something the user should know about the file; said once."""
        if text not in self.notes:
            self.notes.append(text)

    def cannot_tell(self, text: str) -> None:
        """A figure this file cannot give, and why: "step times: the file has no step marks"."""
        if text not in self.unknown:
            self.unknown.append(text)

    def add_count(self, what: str, n: int = 1) -> None:
        """Add to a count of what was dropped, clipped or left unlinked; zero is not kept."""
        if n:
            self.counts[what] = self.counts.get(what, 0) + int(n)

    def add_damage(self, what: str, n: int = 1) -> None:
        """A count of what is broken in the file: a run made from it is partial."""
        if n:
            self.add_count(what, n)
            self.damage.add(what)

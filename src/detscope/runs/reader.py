"""Reading a run: whole or partial, this schema or an older one; needs neither torch nor a GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from detscope.errors import InputError
from detscope.runs.info import RunInfo, VersionInfo
from detscope.runs.schema import NEVER_NULL, SCHEMA_VERSION
from detscope.runs.writer import polars_schema, read_part, read_table

_RESTORE = "restore the file from a backup"
# polars panics over some damage, and asks for whatever memory a header claims
_UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, MemoryError, ValueError)


@dataclass(frozen=True)
class Run:
    """An opened run."""

    folder: Path
    info: dict[str, Any]

    @property
    def status(self) -> str:
        """ok, partial or failed."""
        return str(self.info.get("status", "partial"))

    def table(self, name: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """A table of the run, or some of its columns; empty, with them, where nothing was recorded."""
        whole = self.folder / f"{name}.parquet"
        parts = sorted((self.folder / "parts").glob(f"{name}-*.arrow"))
        schema = polars_schema(name)
        wanted = schema if columns is None else {column: schema[column] for column in columns}
        frames = [_read_piece(piece, name, wanted) for piece in ([whole] if whole.exists() else parts)]
        if len(frames) == 1 and frames[0].schema == wanted:
            return frames[0]
        empty = pl.DataFrame(schema=wanted)
        return pl.concat([empty, *frames], how="diagonal_relaxed") if frames else empty


def _read_piece(path: Path, table: str, wanted: dict[str, Any]) -> pl.DataFrame:
    """A file of a table with the wanted columns, as far as it has them: older runs may lack some."""
    if not path.is_file():
        raise _damage_error(path, "it is no file")
    try:
        frame = read_table(path, wanted) if path.suffix == ".parquet" else read_part(path)
    except _UNREADABLE as error:
        raise _damage_error(path, error) from error
    frame = frame.select(column for column in wanted if column in frame.columns)
    for column, kind in wanted.items():
        found = frame.schema.get(column, pl.Null)
        if found not in (kind, pl.Null):
            raise _damage_error(path, f"its column {column} is {found}, not {kind}")
        if column in NEVER_NULL[table] and frame.height and (found == pl.Null or frame[column].null_count()):
            raise _damage_error(path, f"its column {column} has gaps")
    return frame


def read_json(path: Path, shape: Any, hint: str) -> dict[str, Any]:
    """A JSON file whose object has the types of `shape`; whatever else it is or says is one clear line."""
    if os.path.lexists(path) and not path.is_file():  # a fifo would never end
        raise _damage_error(path, "it is no file", hint)
    try:
        content: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        msgspec.convert(content, shape)  # gives what is known; what is kept is everything
    except (OSError, ValueError, RecursionError) as error:
        raise _damage_error(path, error, hint) from error
    return content


def _damage_error(
    path: Path, why: object, hint: str = "record the run again, or restore the file"
) -> InputError:
    if isinstance(why, RecursionError):
        why = "it is nested too deeply"
    elif isinstance(why, OSError):
        why = why.strerror or why
    lines = str(why).splitlines() or [type(why).__name__]
    return InputError(f"{path} is damaged: {lines[0][:200]}", hint)


def load_run(path: str | Path) -> Run:
    """Open a run folder; run.json is checked here, once for all who read it."""
    folder = Path(path)
    file = folder / "run.json"
    if not os.path.lexists(file):
        raise InputError(
            f"{folder} is not a run: it has no run.json", "give a folder that a measuring verb wrote"
        )
    version = read_json(file, VersionInfo, _RESTORE)["schema"]
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{folder} was written by a newer detscope (schema {version}; this one reads {SCHEMA_VERSION})",
            "update detscope",
        )
    return Run(folder, read_json(file, RunInfo, _RESTORE))

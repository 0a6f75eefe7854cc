"""Reading a run: whole or partial, this schema or an older one; needs neither torch nor a GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from detscope.errors import InputError
from detscope.runs.schema import SCHEMA_VERSION, TABLES
from detscope.runs.writer import polars_schema, read_part


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
        pieces = [whole] if whole.is_file() else parts
        frames = []
        for piece in pieces:
            try:
                frames.append(_read_whole(piece, columns) if piece == whole else read_part(piece))
            except (pl.exceptions.PolarsError, OSError) as error:
                raise InputError(
                    f"{piece} is damaged: {str(error).splitlines()[0]}",
                    "record the run again, or restore the file",
                ) from error
        schema = polars_schema(name)
        wanted = schema if columns is None else {column: schema[column] for column in columns}
        if len(frames) == 1 and frames[0].schema == wanted:
            return frames[0]
        empty = pl.DataFrame(schema=schema)
        found = pl.concat([empty, *frames], how="diagonal_relaxed") if frames else empty
        return found if columns is None else found.select(columns)


def _read_whole(path: Path, columns: Sequence[str] | None) -> pl.DataFrame:
    """A table's file, as far as it has the columns: older runs may lack some."""
    if columns is None:
        return pl.read_parquet(path)
    known = pl.read_parquet_schema(path)
    return pl.read_parquet(path, columns=[column for column in columns if column in known])


def load_run(path: str | Path) -> Run:
    """Open a run folder."""
    folder = Path(path)
    try:
        info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        version = info["schema"]
    except FileNotFoundError:
        raise InputError(
            f"{folder} is not a run: it has no run.json", "give a folder that a measuring verb wrote"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder / 'run.json'} is damaged: {error}", "restore the file from a backup"
        ) from error
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise InputError(
            f"{folder} was written by a newer detscope (schema {version}; this one reads {SCHEMA_VERSION})",
            "update detscope",
        )
    return Run(folder, info)


def table_names() -> tuple[str, ...]:
    """All tables a run may have."""
    return tuple(TABLES)

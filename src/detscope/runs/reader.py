"""Reading a run: whole or partial, this schema or an older one; needs neither torch nor a GPU."""

from __future__ import annotations

import json
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

    def table(self, name: str) -> pl.DataFrame:
        """A table of the run; empty, with its columns, where nothing was recorded."""
        whole = self.folder / f"{name}.parquet"
        parts = sorted((self.folder / "parts").glob(f"{name}-*.arrow"))
        pieces = [whole] if whole.is_file() else parts
        frames = []
        for piece in pieces:
            try:
                frames.append(pl.read_parquet(piece) if piece == whole else read_part(piece))
            except (pl.exceptions.PolarsError, OSError) as error:
                raise InputError(
                    f"{piece} is damaged: {str(error).splitlines()[0]}",
                    "record the run again, or restore the file",
                ) from error
        empty = pl.DataFrame(schema=polars_schema(name))
        return pl.concat([empty, *frames], how="diagonal_relaxed") if frames else empty


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

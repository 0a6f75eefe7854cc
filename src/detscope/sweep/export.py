"""Results out of a store: CSV and Parquet with every column, or the files of the older toolflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detscope.errors import InputError, UsageError
from detscope.runs.atomic import storage_error, write_atomically
from detscope.sweep.keys import canonical
from detscope.sweep.store import read_rows
from detscope.sweep.store_schema import COLUMNS

_TYPES = {"TEXT": "String", "INTEGER": "Int64", "REAL": "Float64"}


def export(store: Path, form: str, out: Path | None = None) -> list[Path]:
    """Write the accepted rows; the paths written. What exists already is not overwritten."""
    rows = read_rows(store)
    if not rows:
        raise InputError(f"{store}: no results to export", "run the sweep first")
    if form == "older":
        from detscope.sweep.legacy import write_older

        return write_older(rows, out or store.with_name(f"{store.stem}-older"))
    path = out or store.with_suffix(f".{form}")
    if path.exists():
        raise UsageError(f"{path}: exists already", "give another name with --out, or remove it")
    frame = _frame(rows)
    try:
        write = frame.write_csv if form == "csv" else frame.write_parquet
        write_atomically(path, write)
    except FileNotFoundError as error:
        raise storage_error(path, error) from error
    return [path]


def _frame(rows: list[dict[str, Any]]) -> Any:
    import polars

    kinds = {name: getattr(polars, _TYPES[kind.split()[0]]) for name, kind in COLUMNS.items()}
    kinds["environment_facts"] = polars.String
    plain = [
        {**row, "more": canonical(row["more"]), "environment_facts": canonical(row["environment_facts"])}
        for row in rows
    ]
    return polars.DataFrame(plain, schema=kinds)

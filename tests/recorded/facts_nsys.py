"""Exports of Nsight Systems as one table, and back into SQLite: what a reader of device use needs of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
from facts_texts import without_home

_TIMES = ("start", "end")
_DEVICE = (*_TIMES, "deviceId", "contextId", "streamId", "correlationId", "globalPid")
TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (*_DEVICE, "demangledName", "shortName", "gridX", "gridY", "gridZ"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*_DEVICE, "bytes", "copyKind"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*_DEVICE, "bytes"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": _DEVICE,
    "CUPTI_ACTIVITY_KIND_RUNTIME": (*_TIMES, "globalTid", "correlationId", "nameId"),
    "NVTX_EVENTS": (*_TIMES, "eventType", "text", "textId", "globalTid"),
    "StringIds": ("id", "value"),
    "DIAGNOSTIC_EVENT": ("severity", "text"),
    "META_DATA_CAPTURE": ("name", "value"),
    "META_DATA_EXPORT": ("name", "value"),
    "TARGET_INFO_GPU": ("id", "name", "smCount", "cuDevice", "totalMemory"),
}
_TEXTS = ("text", "value", "name")
_NAMES = ("demangledName", "shortName", "nameId", "textId")  # numbers of StringIds
_EXPORT = ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
_LEFT_OUT = "/usr/local/cuda"  # the figure is how many variables there are; none of them may come out


def reduce_export(path: Path) -> pl.DataFrame:
    """Rows of all tables below each other; a column that a table has not is null there."""
    frames = []
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        for table, wanted in TABLES.items():
            spelt = [str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")]
            columns = [name for name in wanted if name in spelt]
            if columns:
                rows = database.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
                schema = {name: pl.String if name in _TEXTS else pl.Int64 for name in columns}
                frame = pl.DataFrame(rows, schema=schema, orient="row", strict=False)
                frames.append(frame.insert_column(0, pl.Series("table", [table] * frame.height)))
    whole = pl.concat(frames, how="diagonal")
    used = {number for name in _NAMES if name in whole.columns for number in whole[name].drop_nulls()}
    is_of = pl.col("table")
    whole = whole.filter(
        (is_of != "StringIds") | pl.col("id").is_in(used),
        (is_of != "META_DATA_EXPORT") | pl.col("name").is_in(_EXPORT),
        (is_of != "META_DATA_CAPTURE") | pl.col("name").str.ends_with("ENVIRONMENT_VARIABLE"),
    )
    variable = pl.col("value").str.extract("^([^=]*=)").add(_LEFT_OUT)
    value = pl.when(is_of == "META_DATA_CAPTURE").then(variable).otherwise("value").alias("value")
    texts = [pl.col(name).map_elements(without_home, pl.String).cast(pl.Categorical) for name in _TEXTS]
    whole = whole.with_columns(value).with_columns(texts[: len(_TEXTS) if "text" in whole.columns else 0])
    return whole.with_columns(pl.col("table").cast(pl.Categorical), pl.col("end") - pl.col("start"))


def restore_export(frame: pl.DataFrame, path: Path) -> None:
    """Write the tables again; one without rows is left out, as older versions do."""
    frame = frame.with_columns(pl.col("end") + pl.col("start"), pl.col("table").cast(pl.String))
    with closing(sqlite3.connect(path)) as database, database:
        for (table,), part in frame.partition_by("table", as_dict=True).items():
            rows = part.select(name for name in TABLES[table] if name in part.columns)
            rows = rows.select(column.name for column in rows if column.null_count() < rows.height)
            columns = ", ".join(f'"{name}"' for name in rows.columns)
            places = ", ".join("?" * rows.width)
            database.execute(f'CREATE TABLE "{table}" ({columns})')
            database.executemany(f'INSERT INTO "{table}" VALUES ({places})', rows.iter_rows())

"""Writing a run, in parts: whatever was flushed opens again, whenever the process is killed."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import polars as pl

from detscope.errors import DetscopeError
from detscope.runs.atomic import give_name, write_aside, write_bytes, write_text
from detscope.runs.folder import create_run_folder, point_latest_at
from detscope.runs.schema import SCHEMA_VERSION, TABLES
from detscope.runs.standard_json import as_plain_text, as_standard_json

FLUSH_EVERY_S = 3.0  # at first, so that a short run that is killed has something to show;
FLUSH_LATER_S = 9.0  # then less often: tables are made between two steps, 20 ms each time
_EARLY_PARTS = 3
OWN_FAILURES = (Exception, pl.exceptions.PanicException)  # that of polars is no `Exception`


def polars_schema(table: str) -> dict[str, Any]:
    """The polars types of a table."""
    return {column: getattr(pl, type_name) for column, type_name in TABLES[table].items()}


def write_table(path: Path, frame: pl.DataFrame) -> None:
    """Write a table atomically; by way of memory, so that a full disk is an OSError with its number."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    write_bytes(path, buffer.getbuffer())


def read_part(path: Path) -> pl.DataFrame:
    """Read a part back."""
    with path.open("rb") as file:
        return pl.read_ipc_stream(file)


def read_table(path: Path, columns: Iterable[str] | None = None) -> pl.DataFrame:
    """Read a table back, or those of the columns that it has; polars takes a path for a pattern and UTF-8."""
    with path.open("rb") as file:
        known = pl.read_parquet_schema(file)
        file.seek(0)
        return pl.read_parquet(
            file, columns=None if columns is None else [name for name in columns if name in known]
        )


def write_part(path: Path, frame: pl.DataFrame) -> None:
    """Write a part of a table aside, as an Arrow stream: a tenth of Parquet's time, between steps."""
    buffer = io.BytesIO()
    frame.write_ipc_stream(buffer, compression="lz4")
    write_aside(path, lambda temporary: temporary.write_bytes(buffer.getbuffer()))


def write_info(folder: Path, info: Mapping[str, Any]) -> None:
    """Write run.json."""
    text = json.dumps(as_standard_json(info), indent=1, allow_nan=False, default=str)
    write_text(folder / "run.json", text + "\n")


def update_info(folder: Path, changes: Mapping[str, Any]) -> None:
    """Say more in run.json of a run that is closed, where every view finds it."""
    from detscope.runs.reader import load_run

    write_info(folder, {**load_run(folder).info, **changes})


class RunWriter:
    """One open run. Rows are kept in memory until `flush`, parts on disk until `close`."""

    def __init__(
        self, parent: Path, verb: str, model: str, info: Mapping[str, Any], config_toml: str = ""
    ) -> None:
        self.folder = create_run_folder(parent, verb, model)
        self._columns: dict[str, list[list[Any]]] = {name: [[] for _ in TABLES[name]] for name in TABLES}
        self._frames: dict[str, list[pl.DataFrame]] = {name: [] for name in TABLES}
        self._sorted_by: dict[str, str] = {}
        self._part = 0
        self._naming: Thread | None = None  # puts the parts of the last flush on disk
        self._failed: DetscopeError | None = None
        self._flushed_at = monotonic()
        self.info: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "verb": verb,
            "status": "partial",
            "reason": "still running, or ended without closing the run",
            **info,
        }
        if config_toml:
            write_text(self.folder / "config.toml", config_toml)
        self.save_info()
        point_latest_at(self.folder)

    def save_info(self) -> None:
        """Write run.json."""
        write_info(self.folder, self.info)

    def append_rows(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add rows, each with the columns of the schema in order."""
        # column by column: thousands of row objects would keep Python's garbage collector busy,
        # and it would do so inside the steps that are measured
        for column, values in zip(self._columns[table], zip(*rows, strict=True), strict=False):
            column.extend(values)

    def append_frame(self, table: str, frame: pl.DataFrame, sorted_by: str | None = None) -> None:
        """Add many rows at once; where they come late, among the others in the order of a column."""
        self._frames[table].append(frame)
        if sorted_by is not None:
            self._sorted_by[table] = sorted_by

    @property
    def is_flush_due(self) -> bool:
        """Whether it is time to flush.

        At fixed moments of the host's clock: ranks wait for each other in every step, and what they write
        in the same pause delays them once, what each writes at a time of its own once per rank.
        """
        period_s = FLUSH_EVERY_S if self._part < _EARLY_PARTS else FLUSH_LATER_S
        return monotonic() // period_s > self._flushed_at // period_s

    def flush_parts(self, wait: bool = True) -> None:
        """Write what came since the last flush as one part per table.

        Without `wait` the disk is waited for in a thread, which needs no processor: a step may run
        meanwhile. What went wrong there is raised by the next call.
        """
        self._wait_for_disk()
        self._part += 1
        paths: list[Path] = []
        try:
            for table in TABLES:
                frame = self._take_pending(table)
                if frame is not None:
                    path = self.folder / "parts" / f"{table}-{self._part:06d}.arrow"
                    write_part(path, frame)
                    paths.append(path)
        finally:  # a full disk ends the run; what found room is kept
            self._naming = Thread(target=self._name_parts, args=(paths,), name="detscope writes")
            self._naming.start()
        if wait:
            self._wait_for_disk()
        self._flushed_at = monotonic()

    def _name_parts(self, paths: Sequence[Path]) -> None:
        """Make what was written aside the run's; runs in a thread."""
        try:
            for path in paths:
                give_name(path)
        except DetscopeError as error:
            self._failed = error

    def _wait_for_disk(self) -> None:
        """Wait until the last flush is on disk, and say if it could not be."""
        if self._naming is not None:
            self._naming.join()
            self._naming = None
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error

    def _take_pending(self, table: str) -> pl.DataFrame | None:
        """Rows that are not on disk yet; they count as handed over."""
        columns, schema = self._columns[table], polars_schema(table)
        pieces = [frame.select(list(schema)) for frame in self._frames[table]]
        if columns[0]:
            try:
                pieces.append(pl.DataFrame(dict(zip(schema, columns, strict=True)), schema=schema))
            except UnicodeEncodeError:
                plain = [[as_plain_text(v) if isinstance(v, str) else v for v in one] for one in columns]
                pieces.append(pl.DataFrame(dict(zip(schema, plain, strict=True)), schema=schema))
        self._columns[table], self._frames[table] = [[] for _ in schema], []
        column = self._sorted_by.pop(table, None)
        if not pieces:
            return None
        whole = pl.concat(pieces)
        return whole if column is None else whole.sort(column, maintain_order=True)

    def forget_rows(self, table: str) -> None:
        """What came for a table so far is not part of the run."""
        self._wait_for_disk()  # a part that is still being named would come back
        self._take_pending(table)
        for part in (self.folder / "parts").glob(f"{table}-*.arrow"):
            part.unlink()

    def close_run(self, status: str, reason: str | None = None) -> None:
        """Join the parts and what is pending into one file per table, and say how the run ended."""
        self._wait_for_disk()
        parts = self.folder / "parts"
        for table in TABLES:
            pieces = [read_part(piece) for piece in sorted(parts.glob(f"{table}-*.arrow"))]
            pending = self._take_pending(table)
            if pending is not None:
                pieces.append(pending)
            if pieces:
                write_table(self.folder / f"{table}.parquet", pl.concat(pieces))
        self.info["status"], self.info["reason"] = status, reason
        self.save_info()
        shutil.rmtree(parts, ignore_errors=True)

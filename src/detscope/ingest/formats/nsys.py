"""SQLite exports of Nsight Systems (`nsys export --type=sqlite`), all schema versions since 3.

The file is opened immutable and not touched. What a version lacks (tables, columns) is null in our tables;
what cannot be known is said. Times stay in the file's own nanoseconds.

The windows of published figures, which the analysis of these files offers by name. Per device, with
U(S) the length of the union of the intervals of S and span(S) from the first start to the last end in S:

- kernels: U(kernels) / span(kernels). h100_2gpu_1s, device 0: 22.385 of 960.485 ms = 2.33 %;
  t4_power_iteration: 1131.743 of 1790.608 ms = 63.2 %; a100_cloverleaf: 294.405 of 342.341 ms = 86.0 %;
  healthy_1pct: 400.000 of 403.990 ms, idle 0.9876 %.
- with copies: U(all) / span(all), all = kernels, copies and sets. h100_2gpu_1s, device 0: 962.890 of
  969.448 ms = 99.3 % (without the 11 sets the numerator would be 962.875).

None of these files has step marks; where a file has them (NVTX "ProfilerStep#7", "step 7", our own
"detscope:step 7"), the window is that of the steps.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from detscope.errors import InputError
from detscope.ingest.attributed import add_events, add_steps
from detscope.ingest.files import RecordedFile
from detscope.ingest.sink import Format, Sink
from detscope.limits import over_limit
from detscope.machine.sqlite_watch import QueryWatch
from detscope.traces.attribution import attribute_events
from detscope.traces.columns import EventColumns, TraceEvents, ValueNumbers, gather_events, join_columns
from detscope.traces.naming import DEVICE_ROLES
from detscope.traces.nesting import NOBODY, find_by_key, take_values

ROWS_AT_ONCE = 100_000
# a damaged schema also shows as text that cannot be decoded, in SQLite's own message
_FAILURES = (sqlite3.Error, OverflowError, MemoryError, UnicodeError)
_AGAIN = "export it again: nsys export --type=sqlite REPORT.nsys-rep"

# as torch.autograd.profiler.emit_nvtx writes them: "aten::add, seq = 12, op_id = 314290"
_OPERATOR = re.compile(r"^(?P<name>[^,]+?)(?:, seq = (?P<sequence>\d{1,18}))?(?:, op_id = \d+.*)$")
_SEQUENCE_ONLY = re.compile(r"^(?P<name>[^,]+?), seq = (?P<sequence>\d{1,18})\b")
_PHASE = re.compile(r"^detscope:phase[ :](?P<name>\w+)$")

KERNELS, COPIES, SETS, GRAPHS, SYNCS, RUNTIME = (
    f"CUPTI_ACTIVITY_KIND_{kind}"
    for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION", "RUNTIME")
)
RANGES = "NVTX_EVENTS"
_KNOWN = (KERNELS, COPIES, SETS, GRAPHS, SYNCS, RUNTIME, RANGES, "META_DATA_EXPORT", "TARGET_INFO_GPU")
# CUpti_ActivityMemcpyKind: arrays live on the device; unified memory migrations are copies as well
COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoD", 4: "DtoH", 5: "DtoD", 6: "DtoD", 7: "DtoD", 8: "DtoD", 9: "HtoH",
    10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD",
}  # fmt: skip
_RANGE_TYPES = [59, 60]  # NVTX_EVENTS.eventType of push/pop and start/end; the others are marks and names
_VERSION = re.compile(r"_v\d+$")  # cudaLaunchKernel_v7000
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|AUTH", re.IGNORECASE)
_LOSS = re.compile(r"not all .*(?:cuda|nvtx)|dropped|lost|incomplete|overflow", re.IGNORECASE)
_ID, _NO_STREAM = 2**24, 0xFFFFFFFF  # globalTid is process * _ID + thread, above them what the host is
_DEVICE_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")


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


def read_meaning(text: str) -> tuple[str, str, int]:
    """What the text of a range says: role of the event, name, autograd sequence number (-1: none)."""
    if phase := _PHASE.match(text):
        return "own phase", phase["name"], -1
    if operator := _OPERATOR.match(text) or _SEQUENCE_ONLY.match(text):
        return "operator", operator["name"], int(operator["sequence"] or -1)
    return "annotation", text, -1


def recognize_head(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Any SQLite file: one that is no export is explained when it is read."""
    return head.startswith(b"SQLite format 3\x00")


def read_export(path: Path, sink: Sink) -> None:
    """Put an export's device and host events into the sink."""
    with open_database(path) as database:
        if not any(table in database.columns for table in _KNOWN):
            raise InputError(
                f"{path.name} is an SQLite file, but no export of Nsight Systems",
                "make one: nsys export --type=sqlite REPORT.nsys-rep",
            )
        _note_facts(path, database, sink)
        reader = _ExportReader(database, sink)
        reader.read_calls()
        reader.read_ranges()
        reader.read_device()
        _note_missing(database, reader, sink)
    reader.add_ranks()
    if not sink.rows:
        raise InputError(
            f"{path.name} has no event of a device or its host",
            "record with: nsys profile --trace=cuda,nvtx ...",
        )


class _ExportReader:
    """The events of an export as columns; each process that used a device is a rank."""

    def __init__(self, database: Database, sink: Sink) -> None:
        self.database, self.sink = database, sink
        self.texts = database.read_texts("StringIds", "id", "value")
        self.sm_counts = {gpu["id"]: gpu["sm_count"] for gpu in sink.info["devices"] if gpu["sm_count"]}
        self.names = ValueNumbers()
        self.parts: dict[str, list[EventColumns]] = defaultdict(list)
        self.processes: list[int] = []  # that used a device; none where the file does not tell them apart

    def _name_codes(self, numbers: pl.Series, pattern: re.Pattern[str] | None = None) -> pl.Series:
        """Names for numbers of `StringIds`, without a pattern; numbers repeat, so each is looked up once."""
        texts = {number: self.texts.get(number, f"name {number}") for number in numbers.drop_nulls().unique()}
        codes = {
            number: self.names[pattern.sub("", text) if pattern else text] for number, text in texts.items()
        }
        return numbers.replace_strict(codes, default=self.names[""], return_dtype=pl.Int64)

    def _add_events(self, role: str, frame: pl.DataFrame, names: pl.Series, what: str) -> None:
        """Rows with a begin and an end in this order; the others are counted."""
        sane = pl.col("start").is_between(-(2**60), 2**60) & pl.col("end").is_between(pl.col("start"), 2**60)
        kept = frame.with_columns(names.alias("name")).filter(sane)
        self.sink.add_count(f"{what} without usable times", frame.height - kept.height)
        if not kept.height:
            return
        column = {name: kept[name].fill_null(-1).to_numpy() for name in kept.columns}
        start, end, name = column.pop("start"), column.pop("end"), column.pop("name")
        thread = np.zeros(len(start), np.int32)  # given when all are known
        self.parts[role].append(EventColumns(start, end - start, name.astype(np.int32), thread, column))

    def read_calls(self) -> None:
        """CUDA calls of the host."""
        columns = ("start", "end", "globalTid", "correlationId", "nameId")
        for frame in self.database.read_frames(RUNTIME, columns):
            names = self._name_codes(frame["nameId"], _VERSION)
            frame = frame.select("start", "end", "globalTid", correlation="correlationId")
            self._add_events("runtime", frame, names, "host calls")

    def read_ranges(self) -> None:
        """NVTX ranges: steps, phases, operators and other people's annotations."""
        columns = ("start", "end", "eventType", "text", "textId", "globalTid")
        for chunk in self.database.read_chunks(RANGES, columns):
            texts = [
                text if isinstance(text, str) else self.texts.get(number)
                for text, number in zip(chunk.pop("text"), chunk.pop("textId"), strict=True)
            ]
            meanings = {text: read_meaning(text) for text in set(texts) if text is not None}
            known = [("", "", -1) if text is None else meanings[text] for text in texts]
            frame = pl.DataFrame({name: as_integers(values) for name, values in chunk.items()}).with_columns(
                role=pl.Series([role for role, _, _ in known], dtype=pl.String),
                code=pl.Series([self.names[name] for _, name, _ in known], dtype=pl.Int64),
                sequence=pl.Series([sequence for _, _, sequence in known], dtype=pl.Int64),
            )
            frame = frame.filter(pl.col("eventType").is_null() | pl.col("eventType").is_in(_RANGE_TYPES))
            self.sink.add_count("ranges still open at the end of the recording", frame["end"].null_count())
            frame = frame.filter(pl.col("end").is_not_null())
            for role in ("own phase", "operator", "annotation"):
                own = frame.filter(pl.col("role") == role)
                self._add_events(
                    role, own.select("start", "end", "globalTid", "sequence"), own["code"], "ranges"
                )

    def read_device(self) -> None:
        """Kernels, copies, sets, whole graphs and synchronisations."""
        read_frames = self.database.read_frames
        names = ("demangledName", "shortName", "mangledName")
        for frame in read_frames(KERNELS, (*_DEVICE_COLUMNS, *names, "gridX", "gridY", "gridZ")):
            blocks = pl.col("gridX") * pl.col("gridY").fill_null(1) * pl.col("gridZ").fill_null(1)
            multiprocessors = pl.col("deviceId").replace_strict(
                self.sm_counts, default=None, return_dtype=pl.Float64
            )
            codes = self._name_codes(frame.select(pl.coalesce(names)).to_series())
            frame = frame.with_columns(blocks_per_sm=(blocks / multiprocessors).fill_null(float("nan")))
            self._add_device("kernel", frame, codes, "blocks_per_sm")
        for frame in read_frames(COPIES, (*_DEVICE_COLUMNS, "bytes", "copyKind")):
            kinds = {kind: self.names[f"Memcpy {words}"] for kind, words in COPY_KINDS.items()}
            unknown = self.names["Memcpy ?"]
            codes = frame["copyKind"].replace_strict(kinds, default=unknown, return_dtype=pl.Int64)
            self._add_device("copy", frame, codes, "bytes")
        for frame in read_frames(SETS, (*_DEVICE_COLUMNS, "bytes")):
            self._add_device("set", frame, self._same_name("Memset", frame), "bytes")
        for frame in read_frames(GRAPHS, (*_DEVICE_COLUMNS, "graphId")):
            self.sink.add_count("CUDA graphs recorded whole: their kernels are not listed", frame.height)
            texts = ("CUDA graph " + frame["graphId"].cast(pl.String).fill_null("?")).to_list()
            self._add_device("kernel", frame, pl.Series([self.names[text] for text in texts], dtype=pl.Int64))
        # the device of every context that ran a kernel or a copy
        columns = ("globalPid", "contextId", "deviceId")
        found = [pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64))]
        for table in (KERNELS, COPIES):
            found += [frame.unique() for frame in read_frames(table, columns)]
        owners = pl.concat(found).drop_nulls().rename({"deviceId": "owner"})
        owners = owners.unique(["globalPid", "contextId"], keep="first", maintain_order=True)
        for frame in read_frames(SYNCS, (*_DEVICE_COLUMNS, "contextId")):
            # some versions write device 0 for every wait; the context knows whose it is
            frame = frame.join(owners, on=["globalPid", "contextId"], how="left", maintain_order="left")
            frame = frame.with_columns(deviceId=pl.coalesce("owner", "deviceId"))
            self._add_device("sync", frame, self._same_name("synchronisation", frame))
        work = [part.extra["process"] for role in DEVICE_ROLES[:3] for part in self.parts.get(role, ())]
        self.processes = sorted(set(np.concatenate(work).tolist()) - {-1}) if work else []

    def _same_name(self, text: str, frame: pl.DataFrame) -> pl.Series:
        return pl.repeat(self.names[text], frame.height, dtype=pl.Int64, eager=True)

    def _add_device(self, role: str, frame: pl.DataFrame, names: pl.Series, *more: str) -> None:
        chosen = frame.select(
            "start",
            "end",
            *more,
            process=pl.when(pl.col("globalPid") >= 0).then(pl.col("globalPid") // _ID % _ID),
            correlation="correlationId",
            device="deviceId",
            stream=pl.col("streamId").replace(_NO_STREAM, None),
        )
        self._add_events(role, chosen, names, f"{role} events")

    def add_ranks(self) -> None:
        """Attribute the events of each rank, and put them into the tables."""
        whole = {role: join_columns(*parts) for role, parts in self.parts.items()}
        hosts = [part for part in whole.values() if "globalTid" in part.extra]
        numbers = np.unique(np.concatenate([[-1], *(part.extra["globalTid"] for part in hosts)]))
        threads = [(n // _ID % _ID, n % _ID) if n >= 0 else (None, None) for n in numbers.tolist()]
        for part in hosts:
            ids = part.extra.pop("globalTid")
            part.thread = np.searchsorted(numbers, ids).astype(np.int32)
            part.extra["process"] = ids // _ID % _ID
        first = self.sink.rank * len(self.processes)
        for order in range(max(1, len(self.processes))):
            self.sink.rank = first + order
            found = attribute_events(self._gather_rank(whole, order, threads))
            add_events(self.sink, found)
            if order == 0:
                add_steps(self.sink, found)
                if len(found.trace.annotations) + len(found.trace.operators) and not len(found.steps):
                    self.sink.cannot_tell('steps: no range is named like a step ("ProfilerStep#7", "step 7")')
        self.sink.rank = first

    def _gather_rank(
        self, whole: dict[str, EventColumns], order: int, threads: list[tuple[Any, Any]]
    ) -> TraceEvents:
        """The events of one rank; those of processes that used no device go with the first."""
        columns = {}
        for role, part in whole.items():
            ranks = np.zeros(len(part), np.int64)
            for rank, process in enumerate(self.processes):
                ranks[part.extra["process"] == process] = rank
            columns[role] = part.take_rows(ranks == order)
        if "sync" in columns and "runtime" in columns:
            # the kind of wait is numbered differently from version to version: the call tells
            waits, calls = columns["sync"], columns["runtime"]
            wanted = waits.extra["correlation"]
            by = find_by_key(calls.extra["correlation"], np.where(wanted > 0, wanted, NOBODY))
            waits.name = np.where(by >= 0, take_values(calls.name, by), waits.name).astype(np.int32)
        own = {role: columns.pop(role) for role in ("own phase",) if role in columns}
        return gather_events(columns, list(self.names), threads, [""], [""], own)


def _note_facts(path: Path, database: Database, sink: Sink) -> None:
    """What the file is, what of it was lost, and that it tells more than it should."""
    facts = dict(reversed(_read_pairs(database, "META_DATA_EXPORT")))
    sink.info.update(
        format="Nsight Systems SQLite export",
        version=facts.get("EXPORT_PRODUCT_VERSION"),
        file_schema=facts.get("EXPORT_SCHEMA_VERSION"),
        devices=_find_devices(database),
    )
    keys = [
        value.split("=", 1)[0].strip()[:60]
        for name, value in _read_pairs(database, "META_DATA_CAPTURE")
        if name.endswith("ENVIRONMENT_VARIABLE") and "=" in value
    ]
    if keys:  # names only, never values
        secret = sorted({key for key in keys if _SECRET.search(key)})
        telling = f"; by their names secret: {', '.join(secret[:8])}" if secret else ""
        sink.add_note(
            f"the file holds {len(keys)} environment variables of the recording machine{telling}; "
            "none of them goes into the run"
        )
    for chunk in database.read_chunks("DIAGNOSTIC_EVENT", ("text",)):
        for text in chunk["text"]:
            if isinstance(text, str) and _LOSS.search(text):
                sink.add_note(f"Nsight Systems says: {' '.join(text.split())[:160]}")
    journal = path.with_name(path.name + "-wal")
    if journal.is_file() and journal.stat().st_size:
        sink.add_note(
            f"{journal.name} holds changes that were never written into the file; they are not read"
        )


def _find_devices(database: Database) -> list[dict[str, Any]]:
    """Devices by CUDA's numbering, which is also that of the events."""
    found: dict[int, dict[str, Any]] = {}
    columns = ("id", "name", "smCount", "cuDevice", "totalMemory")
    for chunk in database.read_chunks("TARGET_INFO_GPU", columns):
        for number, name, multiprocessors, cuda, memory in zip(*chunk.values(), strict=True):
            device = cuda if isinstance(cuda, int) else number
            if isinstance(device, int):
                found[device] = {
                    "id": device,
                    "name": str(name) if name is not None else None,
                    "sm_count": multiprocessors if isinstance(multiprocessors, int) else None,
                    "memory_bytes": memory if isinstance(memory, int) else None,
                }
    return [found[device] for device in sorted(found)]


def _note_missing(database: Database, reader: _ExportReader, sink: Sink) -> None:
    absent = (
        (KERNELS, "device use: the file has no kernels (record with --trace=cuda)"),
        (RUNTIME, "who launched what, and host lateness: the file has no CUDA calls"),
        (RANGES, "operators and steps: the file has no NVTX ranges (record with --trace=cuda,nvtx)"),
    )
    for table, words in absent:
        if not database.count_rows(table):
            sink.cannot_tell(words)
    if not reader.sm_counts:
        sink.cannot_tell("estimated SM efficiency: the file does not say how many SMs the device has")
    sink.cannot_tell("occupancy: Nsight Systems does not estimate it")
    if len(reader.processes) > 1:
        first = sink.rank * len(reader.processes)
        sink.info["processes"] = {str(first + n): process for n, process in enumerate(reader.processes)}
        sink.add_note(f"{len(reader.processes)} processes used a device: each is a rank of its own")


def _read_pairs(database: Database, table: str) -> list[tuple[str, str]]:
    return [
        (str(name), str(value))
        for chunk in database.read_chunks(table, ("name", "value"))
        for name, value in zip(chunk["name"], chunk["value"], strict=True)
    ]


PART = Format("Nsight Systems export", recognize_head, read_export, order=10)

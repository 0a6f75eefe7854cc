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
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from detscope.errors import InputError
from detscope.ingest.files import RecordedFile
from detscope.ingest.sink import Format, Sink
from detscope.limits import over_limit
from detscope.machine.sqlite_watch import QueryWatch

ROWS_AT_ONCE = 100_000
# a damaged schema also shows as text that cannot be decoded, in SQLite's own message
_FAILURES = (sqlite3.Error, OverflowError, MemoryError, UnicodeError)
_AGAIN = "export it again: nsys export --type=sqlite REPORT.nsys-rep"

# as torch.autograd.profiler.emit_nvtx writes them: "aten::add, seq = 12, op_id = 314290"
_OPERATOR = re.compile(r"^(?P<name>[^,]+?)(?:, seq = (?P<sequence>\d{1,18}))?(?:, op_id = \d+.*)$")
_SEQUENCE_ONLY = re.compile(r"^(?P<name>[^,]+?), seq = (?P<sequence>\d{1,18})\b")
_STEP = re.compile(
    r"^(?:detscope:step[ :#]*|ProfilerStep ?#|(?:training |train |inference )?(?:step|iteration|iter)[ :_#]*)"
    r"(?P<number>\d{1,15})$",
    re.IGNORECASE,
)
_PHASE = re.compile(r"^detscope:phase[ :](?P<name>\w+)$")

Integers = NDArray[np.int64]

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
_COMMUNICATION = r"(?i)nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|nvshmem"
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|AUTH", re.IGNORECASE)
_LOSS = re.compile(r"not all .*(?:cuda|nvtx)|dropped|lost|incomplete|overflow", re.IGNORECASE)
_ID, _NO_STREAM = 2**24, 0xFFFFFFFF  # globalTid is process * _ID + thread, above them what the host is
_PROCESS = (pl.col("globalTid") // _ID % _ID).alias("process")
_THREAD = (pl.col("globalTid") % _ID).alias("thread")
_DEVICE_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_LAUNCH_TYPES = dict.fromkeys(
    ("rank", "correlation", "launch_ns", "launch_wall_ns", "launch_thread"), pl.Int64
) | {"call": pl.String}


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


@dataclass(frozen=True)
class RangeMeaning:
    """What a range's text says: kind of host event, name, autograd sequence number, step number."""

    kind: str
    name: str
    sequence: int | None = None
    step: int | None = None


def read_meaning(text: str) -> RangeMeaning:
    """Read the text of a range."""
    if step := _STEP.match(text):
        return RangeMeaning("step", text, step=int(step["number"]))
    if phase := _PHASE.match(text):
        return RangeMeaning("phase", phase["name"])
    if operator := _OPERATOR.match(text) or _SEQUENCE_ONLY.match(text):
        sequence = operator["sequence"]
        return RangeMeaning("operator", operator["name"], int(sequence) if sequence else None)
    return RangeMeaning("annotation", text)


@dataclass
class RangeIndex:
    """Ranges of one kind on all threads, for looking up the innermost one around a moment."""

    numbers: list[int] = field(default_factory=list)  # four of each range, one after the other

    def add_range(self, thread: int, start_ns: int, end_ns: int, value: int) -> None:
        """Keep a range; its value is an index into names, or a step's number."""
        self.numbers += (thread, start_ns, end_ns, value)

    def find_around(self, threads: Integers, moments: Integers) -> Integers:
        """The value of the innermost range around each moment on its thread; -1 for none."""
        found = np.full(len(moments), -1, dtype=np.int64)
        ranges = np.array(self.numbers, dtype=np.int64).reshape(-1, 4)
        for thread in np.unique(ranges[:, 0]):
            asked = np.flatnonzero(threads == thread)
            if len(asked):
                found[asked] = _find_on_thread(ranges[ranges[:, 0] == thread], moments[asked])
        return found


def _find_on_thread(ranges: Integers, moments: Integers) -> Integers:
    """Push/pop ranges of a thread are nested: the innermost is the last one opened and not yet closed."""
    _, starts, ends, values = ranges[np.lexsort((-ranges[:, 2], ranges[:, 1]))].T
    parents = _find_parents(starts.tolist(), ends.tolist())
    at = np.searchsorted(starts, moments, side="right") - 1
    # walk outwards, all moments at once, until the range reaches over its moment
    outside = (at >= 0) & (ends[at] < moments)
    while outside.any():
        at[outside] = parents[at[outside]]
        outside = (at >= 0) & (ends[at] < moments)
    return np.where(at >= 0, values[at], -1)


def _find_parents(starts: list[int], ends: list[int]) -> Integers:
    """The range that encloses each range, by position; -1 for the outermost."""
    parents = np.full(len(starts), -1, dtype=np.int64)
    open_ranges: list[int] = []
    for position, start_ns in enumerate(starts):
        while open_ranges and ends[open_ranges[-1]] < start_ns:
            open_ranges.pop()
        if open_ranges:
            parents[position] = open_ranges[-1]
        open_ranges.append(position)
    return parents


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
    if not sink.rows:
        raise InputError(
            f"{path.name} has no event of a device or its host",
            "record with: nsys profile --trace=cuda,nvtx ...",
        )


class _ExportReader:
    """Rows of `device_events` and `host_events`: calls and ranges first, device work is linked to them."""

    def __init__(self, database: Database, sink: Sink) -> None:
        self.database, self.sink = database, sink
        self.names = database.read_texts("StringIds", "id", "value")
        self.sm_counts = {gpu["id"]: gpu["sm_count"] for gpu in sink.info["devices"] if gpu["sm_count"]}
        # Each process that used a device is a rank: its calls and correlation numbers are its own.
        seen: set[int] = set()
        for table in (KERNELS, COPIES, SETS):
            if "globalpid" in database.columns.get(table, {}):
                for frame in database.read_frames(table, ("globalPid",)):
                    seen |= set(frame["globalPid"].drop_nulls().unique().to_list())
        processes = sorted(value // _ID % _ID for value in seen)
        first = sink.rank * len(processes)
        # process -> rank; empty where the file does not tell processes apart
        self.ranks = {process: first + order for order, process in enumerate(processes)}
        self.launches = pl.DataFrame(schema=_LAUNCH_TYPES)
        self.operators, self.steps = RangeIndex(), RangeIndex()
        self.operator_names: dict[str, int] = {}

    def _rank_of(self, processes: pl.Series) -> pl.Series:
        if not self.ranks:
            return pl.Series("rank", [self.sink.rank] * len(processes), dtype=pl.Int64)
        ranks = processes.replace_strict(self.ranks, default=self.sink.rank, return_dtype=pl.Int64)
        return ranks.alias("rank")

    def _name_of(self, numbers: pl.Series, pattern: re.Pattern[str] | None = None) -> pl.Series:
        """Texts for numbers of `StringIds`, without a pattern; numbers repeat, so each is looked up once."""
        wanted = numbers.drop_nulls().unique().to_list()
        texts = {number: self.names.get(number, f"name {number}") for number in wanted}
        if pattern is not None:
            texts = {number: pattern.sub("", text) for number, text in texts.items()}
        return numbers.replace_strict(texts, default=None, return_dtype=pl.String).alias("name")

    def _keep_timed(self, frame: pl.DataFrame, what: str) -> pl.DataFrame:
        """Rows with a begin and an end in this order; the others are counted."""
        sane = pl.col("start").is_between(-(2**60), 2**60) & pl.col("end").is_between(pl.col("start"), 2**60)
        kept = frame.filter(sane)
        self.sink.add_count(f"{what} without usable times", frame.height - kept.height)
        return kept.with_columns(start_ns=pl.col("start"), wall_ns=pl.col("end") - pl.col("start"))

    def read_calls(self) -> None:
        """CUDA calls of the host, kept as well for linking device work to its launch."""
        kept = []
        for frame in self.database.read_frames(
            RUNTIME, ("start", "end", "globalTid", "correlationId", "nameId")
        ):
            frame = self._keep_timed(frame, "host calls").with_columns(
                _PROCESS, _THREAD, correlation="correlationId"
            )
            frame = frame.with_columns(
                self._rank_of(frame["process"]),
                self._name_of(frame["nameId"], _VERSION),
                kind=pl.lit("runtime"),
            )
            columns = ("rank", "process", "thread", "kind", "name", "start_ns", "wall_ns", "correlation")
            self.sink.add_rows("host_events", frame.select(columns))
            kept.append(
                frame.select(
                    "rank",
                    "correlation",
                    launch_ns="start_ns",
                    launch_wall_ns="wall_ns",
                    launch_thread="thread",
                    call="name",
                )
            )
        if kept:
            calls = pl.concat(kept).filter(pl.col("correlation") != 0)  # 0 is "none" in every schema
            self.launches = calls.unique(["rank", "correlation"], keep="first", maintain_order=True)

    def read_ranges(self) -> None:
        """NVTX ranges: steps, phases, operators and other people's annotations."""
        columns = ("start", "end", "eventType", "text", "textId", "globalTid")
        for chunk in self.database.read_chunks(RANGES, columns):
            numbers = chunk.pop("textId")
            texts = [
                text if isinstance(text, str) else self.names.get(number)
                for text, number in zip(chunk.pop("text"), numbers, strict=True)
            ]
            frame = pl.DataFrame({name: as_integers(values) for name, values in chunk.items()}).with_columns(
                _PROCESS, _THREAD, text=pl.Series(texts, dtype=pl.String)
            )
            frame = frame.filter(pl.col("eventType").is_null() | pl.col("eventType").is_in(_RANGE_TYPES))
            self.sink.add_count("ranges still open at the end of the recording", frame["end"].null_count())
            frame = self._keep_timed(frame.filter(pl.col("end").is_not_null()), "ranges")
            self._add_ranges(frame.filter(pl.col("text").is_not_null()))

    def _add_ranges(self, frame: pl.DataFrame) -> None:
        ranks = self._rank_of(frame["process"])
        meanings = [read_meaning(text) for text in frame["text"].to_list()]
        threads = _thread_keys(ranks, frame["thread"])
        starts, walls = frame["start_ns"].to_list(), frame["wall_ns"].to_list()
        for meaning, thread, start_ns, wall_ns in zip(meanings, threads, starts, walls, strict=True):
            if meaning.kind == "operator":
                number = self.operator_names.setdefault(meaning.name, len(self.operator_names))
                self.operators.add_range(thread, start_ns, start_ns + wall_ns, number)
            elif meaning.step is not None:
                self.steps.add_range(thread, start_ns, start_ns + wall_ns, meaning.step)
        self.sink.add_rows(
            "host_events",
            frame.select(
                ranks,
                "process",
                "thread",
                "start_ns",
                "wall_ns",
                pl.Series("kind", [meaning.kind for meaning in meanings], dtype=pl.String),
                pl.Series("name", [meaning.name for meaning in meanings], dtype=pl.String),
                pl.Series("sequence", [meaning.sequence for meaning in meanings], dtype=pl.Int64),
            ),
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
            texts = self._name_of(frame.select(pl.coalesce(names)).to_series())
            self._add_device(frame.with_columns(texts, blocks_per_sm=blocks / multiprocessors), "kernel")
        for frame in read_frames(COPIES, (*_DEVICE_COLUMNS, "bytes", "copyKind")):
            copy = pl.col("copyKind").replace_strict(COPY_KINDS, default=None, return_dtype=pl.String)
            self._add_device(frame.with_columns(copy=copy, name="Memcpy " + copy.fill_null("?")), "copy")
        for frame in read_frames(SETS, (*_DEVICE_COLUMNS, "bytes")):
            self._add_device(frame.with_columns(name=pl.lit("Memset")), "set")
        for frame in read_frames(GRAPHS, (*_DEVICE_COLUMNS, "graphId")):
            self.sink.add_count("CUDA graphs recorded whole: their kernels are not listed", frame.height)
            name = "CUDA graph " + pl.col("graphId").cast(pl.String).fill_null("?")
            self._add_device(frame.with_columns(name=name), "kernel")
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
            self._add_device(frame.with_columns(deviceId=pl.coalesce("owner", "deviceId")), "sync")

    def _add_device(self, frame: pl.DataFrame, kind: str) -> None:
        frame = self._keep_timed(frame, f"{kind} events")
        if not frame.height:
            return
        ranks = self._rank_of(frame.select(pl.col("globalPid") // _ID % _ID).to_series())
        frame = frame.with_columns(ranks, correlation="correlationId").join(
            self.launches, on=["rank", "correlation"], how="left", maintain_order="left"
        )
        if kind == "sync":  # the kind of wait is numbered differently from version to version: the call tells
            frame = frame.with_columns(name=pl.col("call").fill_null("synchronisation"))
        self.sink.add_count(f"{kind} events without a launch record", frame["launch_ns"].null_count())
        names = np.array([*self.operator_names, None], dtype=object)
        threads = np.array(_thread_keys(frame["rank"], frame["launch_thread"]), dtype=np.int64)
        moments = frame["launch_ns"].fill_null(-(2**62)).to_numpy()
        operators = names[self.operators.find_around(threads, moments)].tolist()
        frame = frame.with_columns(
            pl.Series("operator", operators, dtype=pl.String),
            pl.Series("step", self.steps.find_around(threads, moments)).replace(-1, None),
            stream=pl.col("streamId").replace(_NO_STREAM, None),
            kind=pl.lit(kind),
            communication=pl.col("name").str.contains(_COMMUNICATION).fill_null(False),
            device="deviceId",
        )
        wanted = ["rank", "device", "stream", "kind", "name", "start_ns", "wall_ns", "correlation"]
        wanted += ["launch_ns", "launch_wall_ns", "launch_thread", "operator", "step", "communication"]
        wanted += [name for name in ("bytes", "copy", "blocks_per_sm") if name in frame.columns]
        self.sink.add_rows("device_events", frame.select(wanted))


def _thread_keys(ranks: pl.Series, threads: pl.Series) -> list[int]:
    """One number per rank and thread: containers may give the same thread number twice."""
    keys: list[int] = (ranks * _ID + threads).fill_null(-1).to_list()
    return keys


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
    if database.count_rows(RANGES) and not reader.steps.numbers:
        sink.cannot_tell('steps: no range is named like a step ("ProfilerStep#7", "step 7")')
    if len(reader.ranks) > 1:
        sink.info["processes"] = {str(rank): process for process, rank in reader.ranks.items()}
        sink.add_note(f"{len(reader.ranks)} processes used a device: each is a rank of its own")


def _read_pairs(database: Database, table: str) -> list[tuple[str, str]]:
    return [
        (str(name), str(value))
        for chunk in database.read_chunks(table, ("name", "value"))
        for name, value in zip(chunk["name"], chunk["value"], strict=True)
    ]


PART = Format("Nsight Systems export", recognize_head, read_export, order=10)

"""Rows of `device_events` and `host_events` out of the tables of an Nsight Systems export."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from detscope.ingest.nsys.database import Database, integers
from detscope.ingest.nsys.ranges import Ranges, meaning_of
from detscope.ingest.sink import Sink

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
RANGES = "NVTX_EVENTS"

# CUpti_ActivityMemcpyKind: arrays live on the device; unified memory migrations are copies as well
COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoD", 4: "DtoH", 5: "DtoD", 6: "DtoD", 7: "DtoD", 8: "DtoD", 9: "HtoH",
    10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD",
}  # fmt: skip
_PUSH_POP, _START_END = 59, 60  # NVTX_EVENTS.eventType of ranges; the others are marks and names
_VERSION = re.compile(r"_v\d+$")  # cudaLaunchKernel_v7000
_COMMUNICATION = r"(?i)nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|nvshmem"
_ID_BITS, _NO_STREAM = 24, 0xFFFFFFFF


@dataclass
class Context:
    """What rows are translated with: names, processes, host calls, ranges."""

    names: dict[int, str]
    ranks: dict[int, int]  # process -> rank; empty where the file does not tell processes apart
    first_rank: int
    launches: pl.DataFrame
    sm_counts: dict[int, int] = field(default_factory=dict)
    operators: Ranges = field(default_factory=Ranges)
    operator_names: dict[str, int] = field(default_factory=dict)
    steps: Ranges = field(default_factory=Ranges)

    def rank_of(self, processes: pl.Series) -> pl.Series:
        """The rank of each process."""
        if not self.ranks:
            return pl.Series([self.first_rank] * len(processes), dtype=pl.Int64)
        return processes.replace_strict(self.ranks, default=self.first_rank, return_dtype=pl.Int64)


def find_ranks(database: Database, sink: Sink) -> dict[int, int]:
    """Each process that used a device is a rank: its calls and correlation numbers are its own."""
    seen: set[int] = set()
    for table in (KERNELS, COPIES, SETS):
        if database.has_column(table, "globalPid"):
            for frame in database.frames(table, ("globalPid",)):
                seen |= set(frame["globalPid"].drop_nulls().unique().to_list())
    processes = sorted(_process_of(value) for value in seen)
    return {process: sink.rank * len(processes) + order for order, process in enumerate(processes)}


def read_host_calls(database: Database, context: Context, sink: Sink) -> None:
    """CUDA calls of the host, kept as well for linking device work to its launch."""
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    kept = []
    for frame in database.frames(RUNTIME, columns):
        frame = _timed(frame, sink, "host calls").with_columns(
            (pl.col("globalTid") // 2**_ID_BITS % 2**_ID_BITS).alias("process"),
            (pl.col("globalTid") % 2**_ID_BITS).alias("thread"),
        )
        frame = frame.with_columns(
            context.rank_of(frame["process"]).alias("rank"), _names(frame["nameId"], context, strip=True)
        )
        sink.add(
            "host_events",
            frame.select(
                "rank",
                "process",
                "thread",
                pl.lit("runtime").alias("kind"),
                "name",
                pl.col("start").alias("start_ns"),
                pl.col("wall").alias("wall_ns"),
                pl.col("correlationId").alias("correlation"),
            ),
        )
        kept.append(
            frame.select(
                "rank",
                pl.col("correlationId").alias("correlation"),
                pl.col("start").alias("launch_ns"),
                pl.col("wall").alias("launch_wall_ns"),
                pl.col("thread").alias("launch_thread"),
                pl.col("name").alias("call"),
            )
        )
    if kept:
        calls = pl.concat(kept).filter(pl.col("correlation") != 0)  # 0 is "none" in every schema
        context.launches = calls.unique(["rank", "correlation"], keep="first", maintain_order=True)


def read_ranges(database: Database, context: Context, sink: Sink) -> None:
    """NVTX ranges: steps, phases, operators and other people's annotations."""
    columns = ("start", "end", "eventType", "text", "textId", "globalTid")
    for chunk in database.chunks(RANGES, columns):
        texts = [
            text if isinstance(text, str) else context.names.get(number)
            for text, number in zip(chunk["text"], chunk["textId"], strict=True)
        ]
        frame = pl.DataFrame(
            {name: integers(chunk[name]) for name in ("start", "end", "eventType", "globalTid")}
        ).with_columns(pl.Series("text", texts, dtype=pl.String))
        frame = frame.filter(
            pl.col("eventType").is_null() | pl.col("eventType").is_in([_PUSH_POP, _START_END])
        )
        sink.count("ranges still open at the end of the recording", frame["end"].null_count())
        frame = _timed(frame.filter(pl.col("end").is_not_null()), sink, "ranges")
        _add_ranges(frame.filter(pl.col("text").is_not_null()), context, sink)


def _add_ranges(frame: pl.DataFrame, context: Context, sink: Sink) -> None:
    frame = frame.with_columns(
        (pl.col("globalTid") // 2**_ID_BITS % 2**_ID_BITS).alias("process"),
        (pl.col("globalTid") % 2**_ID_BITS).alias("thread"),
    )
    ranks = context.rank_of(frame["process"])
    threads = _thread_keys(ranks, frame["thread"])
    meanings = [meaning_of(text) for text in frame["text"].to_list()]
    for meaning, thread, start_ns, wall_ns in zip(
        meanings, threads, frame["start"].to_list(), frame["wall"].to_list(), strict=True
    ):
        if meaning.kind == "operator":
            number = context.operator_names.setdefault(meaning.name, len(context.operator_names))
            context.operators.add(thread, start_ns, start_ns + wall_ns, number)
        elif meaning.kind == "step" and meaning.step is not None:
            context.steps.add(thread, start_ns, start_ns + wall_ns, meaning.step)
    sink.add(
        "host_events",
        pl.DataFrame(
            {
                "rank": ranks,
                "process": frame["process"],
                "thread": frame["thread"],
                "kind": [meaning.kind for meaning in meanings],
                "name": [meaning.name for meaning in meanings],
                "start_ns": frame["start"],
                "wall_ns": frame["wall"],
                "sequence": pl.Series([meaning.sequence for meaning in meanings], dtype=pl.Int64),
            },
            schema_overrides={"kind": pl.String, "name": pl.String},
        ),
    )


def read_device(database: Database, context: Context, sink: Sink) -> None:
    """Kernels, copies, sets, whole graphs and synchronisations."""
    shared = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
    for frame in database.frames(
        KERNELS, (*shared, "demangledName", "shortName", "mangledName", "gridX", "gridY", "gridZ")
    ):
        numbers = pl.coalesce("demangledName", "shortName", "mangledName")
        frame = frame.with_columns(_names(frame.select(numbers).to_series(), context))
        blocks = pl.col("gridX") * pl.col("gridY").fill_null(1) * pl.col("gridZ").fill_null(1)
        multiprocessors = pl.col("deviceId").replace_strict(
            context.sm_counts, default=None, return_dtype=pl.Float64
        )
        frame = frame.with_columns((blocks / multiprocessors).alias("blocks_per_sm"))
        _add_device(frame, "kernel", context, sink)
    for frame in database.frames(COPIES, (*shared, "bytes", "copyKind")):
        copy = pl.col("copyKind").replace_strict(COPY_KINDS, default=None, return_dtype=pl.String)
        frame = frame.with_columns(copy.alias("copy")).with_columns(
            ("Memcpy " + pl.col("copy").fill_null("?")).alias("name")
        )
        _add_device(frame, "copy", context, sink)
    for frame in database.frames(SETS, (*shared, "bytes")):
        _add_device(frame.with_columns(pl.lit("Memset").alias("name")), "set", context, sink)
    for frame in database.frames(GRAPHS, (*shared, "graphId")):
        name = "CUDA graph " + pl.col("graphId").cast(pl.String).fill_null("?")
        sink.count("CUDA graphs recorded whole: their kernels are not listed", frame.height)
        _add_device(frame.with_columns(name.alias("name")), "kernel", context, sink)
    owners = _devices_of_contexts(database)
    for frame in database.frames(SYNCS, (*shared, "contextId")):
        # some versions write device 0 for every wait; the context knows whose it is
        frame = frame.join(owners, on=["globalPid", "contextId"], how="left", maintain_order="left")
        device = pl.coalesce("owner", "deviceId").alias("deviceId")
        _add_device(frame.with_columns(device, pl.lit(None, pl.String).alias("name")), "sync", context, sink)


def _devices_of_contexts(database: Database) -> pl.DataFrame:
    """The device of every context that ran a kernel or a copy."""
    columns = ("globalPid", "contextId", "deviceId")
    found = [pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64))]
    for table in (KERNELS, COPIES):
        found += [frame.unique() for frame in database.frames(table, columns)]
    owners = (
        pl.concat(found).drop_nulls().unique(["globalPid", "contextId"], keep="first", maintain_order=True)
    )
    return owners.rename({"deviceId": "owner"})


def _add_device(frame: pl.DataFrame, kind: str, context: Context, sink: Sink) -> None:
    frame = _timed(frame, sink, f"{kind} events")
    if not frame.height:
        return
    processes = frame.select(pl.col("globalPid") // 2**_ID_BITS % 2**_ID_BITS).to_series()
    frame = frame.with_columns(
        context.rank_of(processes).alias("rank"), pl.col("correlationId").alias("correlation")
    ).join(context.launches, on=["rank", "correlation"], how="left", maintain_order="left")
    if kind == "sync":  # the kind of wait is numbered differently from version to version: the call tells
        frame = frame.with_columns(pl.col("call").fill_null("synchronisation").alias("name"))
    sink.count(f"{kind} events without a launch record", frame["launch_ns"].null_count())
    names = np.array([*context.operator_names, None], dtype=object)
    threads = np.array(_thread_keys(frame["rank"], frame["launch_thread"]), dtype=np.int64)
    moments = frame["launch_ns"].fill_null(-(2**62)).to_numpy()
    frame = frame.with_columns(
        pl.Series("operator", names[context.operators.around(threads, moments)].tolist(), dtype=pl.String),
        pl.Series("step", context.steps.around(threads, moments)).replace(-1, None),
        pl.col("streamId").replace(_NO_STREAM, None).alias("stream"),
        pl.lit(kind).alias("kind"),
        pl.col("name").str.contains(_COMMUNICATION).fill_null(False).alias("communication"),
    )
    wanted = ["rank", "stream", "kind", "name", "correlation", "launch_ns", "launch_wall_ns", "launch_thread"]
    wanted += ["operator", "step", "communication"]
    wanted += [name for name in ("bytes", "copy", "blocks_per_sm") if name in frame.columns]
    sink.add(
        "device_events",
        frame.select(
            *wanted,
            pl.col("deviceId").alias("device"),
            pl.col("start").alias("start_ns"),
            pl.col("wall").alias("wall_ns"),
        ),
    )


def _timed(frame: pl.DataFrame, sink: Sink, what: str) -> pl.DataFrame:
    """Rows with a begin and an end in this order; the others are counted."""
    sane = pl.col("start").is_between(-(2**60), 2**60) & pl.col("end").is_between(pl.col("start"), 2**60)
    kept = frame.filter(sane)
    sink.count(f"{what} without usable times", frame.height - kept.height)
    return kept.with_columns((pl.col("end") - pl.col("start")).alias("wall"))


def _names(numbers: pl.Series, context: Context, strip: bool = False) -> pl.Series:
    """Texts for numbers of `StringIds`; numbers repeat, so each is looked up once."""
    wanted = numbers.drop_nulls().unique().to_list()
    texts = {number: context.names.get(number, f"name {number}") for number in wanted}
    if strip:
        texts = {number: _VERSION.sub("", text) for number, text in texts.items()}
    return numbers.replace_strict(texts, default=None, return_dtype=pl.String).alias("name")


def _thread_keys(ranks: pl.Series, threads: pl.Series) -> list[int]:
    """One number per rank and thread: containers may give the same thread number twice."""
    keys: list[int] = (ranks * 2**_ID_BITS + threads).fill_null(-1).to_list()
    return keys


def _process_of(identifier: int) -> int:
    return int(identifier >> _ID_BITS & (1 << _ID_BITS) - 1)

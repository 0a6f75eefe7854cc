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
from pathlib import Path
from typing import Any

import polars as pl

from detscope.errors import InputError
from detscope.ingest.nsys.database import SQLITE_MAGIC, Database, open_database
from detscope.ingest.nsys.events import (
    COPIES,
    GRAPHS,
    KERNELS,
    RANGES,
    RUNTIME,
    SETS,
    SYNCS,
    Context,
    find_ranks,
    read_device,
    read_host_calls,
    read_ranges,
)
from detscope.ingest.sink import Sink

_KNOWN = (KERNELS, COPIES, SETS, GRAPHS, SYNCS, RUNTIME, RANGES, "META_DATA_EXPORT", "TARGET_INFO_GPU")
_NO_LAUNCHES = pl.DataFrame(
    schema={
        "rank": pl.Int64,
        "correlation": pl.Int64,
        "launch_ns": pl.Int64,
        "launch_wall_ns": pl.Int64,
        "launch_thread": pl.Int64,
        "call": pl.String,
    }
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|AUTH", re.IGNORECASE)
_LOSS = re.compile(r"not all .*(?:cuda|nvtx)|dropped|lost|incomplete|overflow", re.IGNORECASE)


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Any SQLite file: one that is no export is explained by `read`."""
    return head.startswith(SQLITE_MAGIC)


def read(path: Path, sink: Sink) -> None:
    """Put an export's device and host events into the sink."""
    with open_database(path) as database:
        if not any(database.has(table) for table in _KNOWN):
            raise InputError(
                f"{path.name} is an SQLite file, but no export of Nsight Systems",
                "make one: nsys export --type=sqlite REPORT.nsys-rep",
            )
        _say_what_it_is(path, database, sink)
        context = Context(
            names=database.texts("StringIds", "id", "value"),
            ranks=find_ranks(database, sink),
            first_rank=sink.rank,
            launches=_NO_LAUNCHES,
            sm_counts={gpu["id"]: gpu["sm_count"] for gpu in sink.info["devices"] if gpu["sm_count"]},
        )
        read_host_calls(database, context, sink)
        read_ranges(database, context, sink)
        read_device(database, context, sink)
        _say_what_is_missing(database, context, sink)
    if not sink.rows:
        raise InputError(
            f"{path.name} has no event of a device or its host",
            "record with: nsys profile --trace=cuda,nvtx ...",
        )


def _say_what_it_is(path: Path, database: Database, sink: Sink) -> None:
    facts = _pairs(database, "META_DATA_EXPORT")
    sink.info.update(
        format="Nsight Systems SQLite export",
        version=next((v for k, v in facts if k == "EXPORT_PRODUCT_VERSION"), None),
        file_schema=next((v for k, v in facts if k == "EXPORT_SCHEMA_VERSION"), None),
        devices=_devices(database),
    )
    _say_private(database, sink)
    for chunk in database.chunks("DIAGNOSTIC_EVENT", ("severity", "text")):
        for text in chunk["text"]:
            if isinstance(text, str) and _LOSS.search(text):
                sink.note(f"Nsight Systems says: {' '.join(text.split())[:160]}")
    journal = path.with_name(path.name + "-wal")
    if journal.is_file() and journal.stat().st_size:
        sink.note(f"{journal.name} holds changes that were never written into the file; they are not read")


def _devices(database: Database) -> list[dict[str, Any]]:
    """Devices by CUDA's numbering, which is also that of the events."""
    found: dict[int, dict[str, Any]] = {}
    for chunk in database.chunks("TARGET_INFO_GPU", ("id", "name", "smCount", "cuDevice", "totalMemory")):
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


def _say_private(database: Database, sink: Sink) -> None:
    """Say that a file tells more than it should; names only, never values."""
    keys = [
        str(value).split("=", 1)[0].strip()[:60]
        for name, value in _pairs(database, "META_DATA_CAPTURE")
        if name.endswith("ENVIRONMENT_VARIABLE") and "=" in value
    ]
    if not keys:
        return
    secret = sorted({key for key in keys if _SECRET.search(key)})
    telling = f"; by their names secret: {', '.join(secret[:8])}" if secret else ""
    sink.note(
        f"the file holds {len(keys)} environment variables of the recording machine{telling}; "
        "none of them goes into the run"
    )


def _say_what_is_missing(database: Database, context: Context, sink: Sink) -> None:
    absent = (
        (KERNELS, "device use: the file has no kernels (record with --trace=cuda)"),
        (RUNTIME, "who launched what, and host lateness: the file has no CUDA calls"),
        (RANGES, "operators and steps: the file has no NVTX ranges (record with --trace=cuda,nvtx)"),
    )
    for table, words in absent:
        if not database.count(table):
            sink.cannot_tell(words)
    if not context.sm_counts:
        sink.cannot_tell("estimated SM efficiency: the file does not say how many SMs the device has")
    sink.cannot_tell("occupancy: Nsight Systems does not estimate it")
    if database.count(RANGES) and not context.steps.starts:
        sink.cannot_tell('steps: no range is named like a step ("ProfilerStep#7", "step 7")')
    if len(context.ranks) > 1:
        sink.info["processes"] = {str(rank): process for process, rank in context.ranks.items()}
        sink.note(f"{len(context.ranks)} processes used a device: each is a rank of its own")


def _pairs(database: Database, table: str) -> list[tuple[str, str]]:
    return [
        (str(name), str(value))
        for chunk in database.chunks(table, ("name", "value"))
        for name, value in zip(chunk["name"], chunk["value"], strict=True)
    ]

"""Traces of torch.profiler as columns, and back: names, times and the arguments that a figure is made of."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from facts_texts import without_home

# column -> where a trace has it
NUMBERS = {
    "correlation": "correlation",
    "external": "External id",
    "device": "device",
    "stream": "stream",
    "bytes": "bytes",
    "blocks_per_sm": "blocks per SM",
    "occupancy": "est. achieved occupancy %",
    "sequence": "Sequence number",
    "memory_bytes": "Bytes",
    "reserved": "Total Reserved",
    "device_type": "Device Type",
    "device_id": "Device Id",
}
TEXTS = {"stack": "Call stack", "hierarchy": "Module Hierarchy"}
FLOATS = ("blocks_per_sm", "occupancy")
OLD_CATEGORIES = ("Runtime", "Kernel", "Memcpy", "Memset")  # these say "external id"
COUNTERS = "cuda_profiler_range"
# figures of the others need no more of Python than which module ran
WITH_PYTHON = ("h100_Falconsai_nsfw_image_detection.json.gz",)
_HEAD = ("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "record_shapes", "with_stack")
_HEAD += ("with_modules", "with_flops", "profile_memory", "cuda_runtime_version", "cuda_driver_version")
_HEAD += ("hip_runtime_version", "cupti_version", "roctracer_version", "distributedInfo")
_DEVICE = ("id", "name", "totalGlobalMem", "computeMajor", "computeMinor", "numSms", "warpSize")
_JOB = ("backend", "rank", "world_size")


def reduce_trace(path: Path) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Events in the order of the file, and what stands around them with a count of those left out."""
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    whole = json.loads(data, strict=False, parse_float=Decimal)
    events = whole if isinstance(whole, list) else whole["traceEvents"]
    kept = [event for event in events if _is_kept(event, path.name)]
    left_out = Counter(event["ph"] for event in events if not _is_kept(event, path.name))
    head: dict[str, Any] = {"left_out": dict(sorted(left_out.items()))}
    if isinstance(whole, dict):
        head["around"] = _around(whole)
    return _columns(kept), head


def _is_kept(event: dict[str, Any], file: str) -> bool:
    if event["ph"] == "X":
        if event.get("cat") == "python_function":
            return file in WITH_PYTHON or event["name"].startswith("nn.Module")
        return event.get("cat") != "Trace"
    return event["ph"] == "i" and event["name"] == "[memory]"


def _around(whole: dict[str, Any]) -> dict[str, Any]:
    """Versions, devices and ranks; of what is somebody's own the names alone."""
    head: dict[str, Any] = {key: _number(whole[key]) for key in _HEAD if key in whole}
    if isinstance(head.get("distributedInfo"), dict):
        head["distributedInfo"] = {k: v for k, v in head["distributedInfo"].items() if k in _JOB}
    if "deviceProperties" in whole:
        devices = whole["deviceProperties"]
        head["deviceProperties"] = [{k: v for k, v in one.items() if k in _DEVICE} for one in devices]
    if any(_keys_below(whole, "HF_TOKEN")):
        head["metadata"] = {"env": {"HF_TOKEN": "left out", "HOSTNAME": "left out"}}
    return head


def _keys_below(value: Any, key: str) -> Iterator[str]:
    for own, inner in value.items() if isinstance(value, dict) else ():
        if own == key:
            yield own
        yield from _keys_below(inner, key)


def _columns(events: list[dict[str, Any]]) -> pl.DataFrame:
    arguments = [event.get("args") or {} for event in events]
    columns: dict[str, pl.Series] = {
        "phase": pl.Series([event["ph"] for event in events], dtype=pl.Categorical),
        "category": pl.Series([event.get("cat") for event in events], dtype=pl.Categorical),
        "name": pl.Series([without_home(event["name"]) for event in events], dtype=pl.Categorical),
        "process": _places(events, "pid"),
        "thread": _places(events, "tid"),
        "ts_ns": pl.Series([_time_ns(event["ts"]) for event in events], dtype=pl.Int64),
        "dur_ns": pl.Series([_wall_ns(event.get("dur")) for event in events], dtype=pl.Int64),
    }
    for column, key in NUMBERS.items():
        values = [_number(own.get(key)) for own in arguments]
        if column == "external":
            older = [own.get("external id") for own in arguments]
            values = [old if new is None else new for old, new in zip(older, values, strict=True)]
        columns[column] = pl.Series(values, dtype=pl.Float32 if column in FLOATS else pl.Int64, strict=False)
    for column, key in TEXTS.items():
        texts = [without_home(own[key]) if own.get(key) else None for own in arguments]
        columns[column] = pl.Series(texts, dtype=pl.Categorical)
    shapes = [json.dumps(own["Input Dims"]) if "Input Dims" in own else None for own in arguments]
    columns["shapes"] = pl.Series(shapes, dtype=pl.Categorical)
    counters = [json.dumps(event["args"]) if event.get("cat") == COUNTERS else None for event in events]
    columns["counters"] = pl.Series(counters, dtype=pl.String)
    frame = pl.DataFrame(columns)
    frame = frame.select(column.name for column in frame if column.null_count() < frame.height)
    return frame.with_columns(pl.col("ts_ns").diff().fill_null(pl.col("ts_ns")))  # steps take less room


def _places(events: list[dict[str, Any]], key: str) -> pl.Series:
    """Numbers and names of processes or threads, as JSON has them."""
    return pl.Series([json.dumps(event.get(key)) for event in events], dtype=pl.Categorical)


def _time_ns(value: Any) -> int:
    return int((Decimal(value) * 1000).quantize(Decimal(1), ROUND_HALF_UP))


def _wall_ns(value: Any) -> int | None:
    return None if value is None else round(float(value) * 1e3)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def restore_trace(frame: pl.DataFrame, head: dict[str, Any], path: Path) -> None:
    """Write the trace again; of events that were left out there are as many, with nothing in them."""
    times = frame["ts_ns"].cum_sum()
    exact = bool((times % 1000 != 0).any())
    events = [
        _event(row, msgspec.Raw(f"{ns // 1000}.{ns % 1000:03d}".encode()) if exact else ns // 1000)
        for row, ns in zip(frame.iter_rows(named=True), times.to_list(), strict=True)
    ]
    events += [{"ph": phase} for phase, count in head["left_out"].items() for _ in range(count)]
    whole = {**head["around"], "traceEvents": events} if "around" in head else events
    data = msgspec.json.encode(whole)
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


def _event(row: dict[str, Any], ts: Any) -> dict[str, Any]:
    arguments = msgspec.json.decode(row["counters"]) if row.get("counters") else {}
    for column, key in (NUMBERS | TEXTS).items():
        if row.get(column) is not None:
            old = column == "external" and row["category"] in OLD_CATEGORIES
            arguments["external id" if old else key] = row[column]
    if row.get("shapes") is not None:
        arguments["Input Dims"] = msgspec.Raw(row["shapes"].encode())
    event = {"ph": row["phase"], "name": row["name"], "ts": ts, "args": arguments}
    event |= {"pid": msgspec.Raw(row["process"].encode()), "tid": msgspec.Raw(row["thread"].encode())}
    if row.get("category") is not None:
        event["cat"] = row["category"]
    if row["dur_ns"] is not None:
        event["dur"] = row["dur_ns"] / 1e3
    return event

"""Kineto / Chrome traces: what torch.profiler and detscope write, old and new, whole or damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from detscope.errors import InputError
from detscope.ingest.attributed import add_events, add_steps
from detscope.ingest.files import RecordedFile
from detscope.ingest.kineto.events import (
    CounterEvent,
    TraceText,
    decode_counters,
    decode_events,
    has_events,
    read_batches,
)
from detscope.ingest.kineto.trace import EventCollector, sort_events
from detscope.ingest.sink import Format, Sink
from detscope.limits import LIMITS, raise_hint, read_limit
from detscope.traces.attribution import attribute_events
from detscope.traces.columns import TraceEvents
from detscope.traces.naming import has_home, scrub_homes

_PRIVATE_KEY = re.compile(
    r"env(iron(ment)?)?$|_env(_|$)|token|secret|passw(or)?d|api_?key|credential|cookie|"
    r"(^|_)user(name)?(_|$)|(^|_)host_?name|(^|_)home(_|$)",
    re.IGNORECASE,
)
# as environment variables spell them; each word costs a pass over the text
_SUSPECT_WORDS = (b"TOKEN", b"SECRET", b"PASSWORD")
_SUSPECT_KEY = re.compile(
    rb'"([A-Za-z0-9_. -]{0,60}(?:token|secret|password|api_key)[A-Za-z0-9_. -]{0,60})"\s*:', re.IGNORECASE
)
_MOST_NODES = 20_000
_DEVICE_FACTS = ("id", "name", "totalGlobalMem", "computeMajor", "computeMinor", "numSms", "warpSize")
_FACTS = (
    *("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds"),
    *("record_shapes", "with_stack", "with_modules", "with_flops", "profile_memory"),
    *("cuda_runtime_version", "cuda_driver_version", "hip_runtime_version"),
    *("cupti_version", "roctracer_version"),
)

_OBJECT = re.compile(rb"^\s*+\{\s*+[\"}]")
_LIST = re.compile(rb"^\s*\[\s*(\{|\])")
_EVENT_KEYS = re.compile(rb'"(traceEvents|ph|schemaVersion|deviceProperties|distributedInfo)"\s*:')
_HINT = "record it again with torch.profiler's export_chrome_trace, or copy it again"


def read_metadata(text: TraceText, count: Callable[[str, int], None]) -> dict[str, Any]:
    """The object around the list of events; what of it cannot be read is left out and counted."""
    before, after = text.before.strip().rstrip(b","), text.after.strip().lstrip(b",")
    found: dict[str, Any] = {}
    parts = [before + b"}"] if before.startswith(b"{") else []
    parts += [b"{" + after] if after.endswith(b"}") else []
    for part in parts:
        try:
            value = json.loads(part.decode("utf-8", errors="replace"))
        except (ValueError, RecursionError):
            count("unreadable parts of the metadata", 1)
            continue
        found |= value if isinstance(value, dict) else {}
    return found


def select_facts(metadata: dict[str, Any]) -> dict[str, Any]:
    """What may be kept: versions, settings, devices and ranks; by name, so that nothing else slips in."""
    facts = {key: metadata[key] for key in _FACTS if isinstance(metadata.get(key), int | str)}
    devices = metadata.get("deviceProperties")
    if isinstance(devices, list):
        facts["devices"] = [
            {key: device[key] for key in _DEVICE_FACTS if isinstance(device.get(key), int | str)}
            for device in devices[:64]
            if isinstance(device, dict)
        ]
    job = metadata.get("distributedInfo")
    if isinstance(job, dict):
        for key in ("rank", "world_size"):
            if isinstance(job.get(key), int) and not isinstance(job.get(key), bool):
                facts[key] = job[key]
        if isinstance(job.get("backend"), str):
            facts["backend"] = job["backend"][:40]
    return facts


def find_private_keys(metadata: dict[str, Any]) -> list[str]:
    """Keys whose names or values look private. Only keys, never values."""
    found: dict[str, None] = {}
    waiting: list[tuple[str, object]] = [(str(key), value) for key, value in metadata.items()]
    for key, value in islice(waiting, _MOST_NODES):  # breadth first: it grows while it is walked
        if _PRIVATE_KEY.search(key) or (isinstance(value, str) and has_home(value)):
            found[key] = None
        if isinstance(value, dict):
            waiting.extend((str(inner), item) for inner, item in value.items())
        elif isinstance(value, list):
            waiting.extend((key, item) for item in value[:1000])
    return list(found)


def recognize_head(head: bytes, path: Path) -> bool:
    """JSON that holds events, as a list or as an object; also where it is cut or damaged further on."""
    head = head.removeprefix(b"\xef\xbb\xbf")
    if _LIST.match(head):
        return b'"ph"' in head or b'"ts"' in head or head.strip() == b"[]"
    if _EVENT_KEYS.search(head):
        return head.lstrip().startswith(b"[") or _OBJECT.match(head) is not None
    return _OBJECT.match(head) is not None and has_events(path)


def read_trace(path: Path, sink: Sink) -> None:
    """Read a trace into the sink's tables."""
    text, collector = TraceText(), EventCollector(sink.add_count, sink.add_damage)
    suspects: set[str] = set()
    counters: list[CounterEvent] = []
    most, limit_name = RecordedFile(path).find_event_limit()
    for batch in read_batches(path, text):
        collector.add_batch(decode_events(batch, text, sink.add_damage))
        if not collector.batch_is_plain and any(word in batch for word in _SUSPECT_WORDS):
            suspects |= {key.decode("ascii", "replace") for key in _SUSPECT_KEY.findall(batch)[:1000]}
        if collector.batch_has_counters:
            counters += decode_counters(batch)
        if collector.kept + len(counters) > most:
            text.stopped = limit_name
            break
    metadata = read_metadata(text, sink.add_damage)
    facts = select_facts(metadata)
    keys = find_private_keys(metadata)
    for place, texts in (("names of events", collector.names), ("Call stack", collector.stacks)):
        if any(isinstance(text, str) and has_home(text) for text in texts):
            keys.append(place)
    keys += sorted(suspects - set(keys))
    if keys:
        shown = ", ".join(key[:60] for key in keys[:12]) + (", ..." if len(keys) > 12 else "")
        sink.add_note(
            f"the file holds what may be private (keys: {shown}); none of it is in the run, "
            "but think before passing the file on"
        )
        sink.info["private_keys"] = [key[:60] for key in keys[:100]]
    sink.add_damage("unreadable bytes skipped", text.skipped_bytes)
    for category, count in collector.unknown.items():
        sink.add_count(f"events of category {category} not understood", count)
    if collector.unknown_on_device:
        sink.info["not_understood"] = dict(collector.unknown_on_device)
    if text.cut:
        sink.add_note("the file ends before its events do: what was read until there is shown")
    if text.stopped:
        reason = f"limit {text.stopped} of {read_limit(text.stopped):,} {LIMITS[text.stopped].unit}"
        sink.add_note(
            f"partial: the first {collector.events:,} events alone were read "
            f"({reason}: {raise_hint(text.stopped)})"
        )
    if text.cut or text.stopped:
        sink.info["cut"] = True
    sink.info |= {"events": collector.events, **facts}
    sink.rank = facts.get("rank", sink.rank)
    trace = sort_events(collector)
    roles = (trace.device, trace.operators, trace.runtime, trace.annotations, *trace.own.values())
    if not counters and not any(len(columns) for columns in roles):
        dropped = ", ".join(f"{n} {what}" for what, n in sink.counts.items())
        raise InputError(f"{path}: no usable event in it" + (f" ({dropped})" if dropped else ""), _HINT)
    base = facts.get("baseTimeNanoseconds")
    offset = base if isinstance(base, int) and 0 < base < 1 << 61 else 0
    found = attribute_events(trace, offset)
    add_events(sink, found)
    add_steps(sink, found)
    _write_counters(sink, counters)
    _write_memory(sink, trace, offset)
    if not len(found.steps):
        sink.cannot_tell("step times: the file has no step marks, no optimizer and no loader")
    if counters and not len(trace.device):
        sink.cannot_tell("how busy the device was: the file has counters of kernels, but no kernel times")
    if not found.modules.made_of:
        sink.cannot_tell("modules: the file names none (record with with_stack=True or with_modules=True)")


def _write_counters(sink: Sink, counters: list[CounterEvent]) -> None:
    """Counters of kernels, in order of time, as Nsight Compute's are kept."""
    ordered = sorted(counters, key=lambda event: event.ts or 0.0)
    rows = [
        (index, scrub_homes(event.name or ""), metric, float(value))
        for index, event in enumerate(ordered)
        for metric, value in (event.args or {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    schema = {"kernel": pl.Int64, "name": pl.String, "metric": pl.String, "value": pl.Float64}
    sink.add_rows("kernel_metrics", pl.DataFrame(rows, schema=schema, orient="row"))


def _write_memory(sink: Sink, trace: TraceEvents, offset_ns: int) -> None:
    """Allocations of a profile with memory: changes, and what the allocator reserved."""
    memory = trace.memory.take_rows(np.argsort(trace.memory.start_ns, kind="stable"))
    number = pl.Series(np.maximum(memory.get_extra("device_id"), 0)).cast(pl.String)
    frame = pl.DataFrame(
        {
            "time_ns": memory.start_ns + offset_ns,
            "delta_bytes": memory.get_extra("memory_bytes"),
            "bytes": memory.get_extra("reserved"),
            "on_cpu": memory.get_extra("device_type") == 0,
        }
    ).with_columns(
        device=pl.when("on_cpu").then(pl.lit("cpu")).otherwise(pl.lit("cuda:") + number),
        category=pl.lit("unknown"),
        level=pl.lit("reserved"),
    )
    sink.add_rows("memory_changes", frame.select("time_ns", "device", "category", "delta_bytes"))
    reserved = frame.filter((pl.col("bytes") >= 0) & ~pl.col("on_cpu"))
    sink.add_rows("memory_levels", reserved.select("time_ns", "device", "level", "bytes"))


PART = Format("Kineto / Chrome trace", recognize_head, read_trace, order=50)

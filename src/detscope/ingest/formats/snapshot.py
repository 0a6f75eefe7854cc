"""Snapshots of CUDA's caching allocator (`torch.cuda.memory._dump_snapshot`): pickle, JSON or torch's page.

The pickle is read by a reader that knows no class (`unpickle`). Blocks of the history and blocks alive at its
end become rows of `memory`; a block whose allocation is not in the history has no `alloc_ns`. So the
level that these rows give is right for the time of the history, and a lower bound of the run's true peak
wherever recording began late. The peak that the history alone would claim leaves all older blocks out.
Blocks freed within the history have the size that was asked for; the allocator rounds it up.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from detscope.errors import InputError
from detscope.ingest.files import RecordedFile
from detscope.ingest.sink import Format, Sink
from detscope.ingest.snapshot.blocks import DeviceMemory, find_code_line, read_device, to_int
from detscope.ingest.snapshot.unpickle import load_plain
from detscope.limits import require_within
from detscope.runs.writer import polars_schema

_PICKLE_HEAD = re.compile(rb"\x80[\x02-\x05]")
_PAGE = re.compile(rb"add_local_files|MemoryViz\.js")
_EMBEDDED = re.compile(rb'"base64"\s*:\s*"([A-Za-z0-9+/=\s]+)"')
_AGAIN = "record it again: torch.cuda.memory._dump_snapshot(file)"


def recognize_head(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """A pickle, a page of torch's memory viewer, or the same data as JSON."""
    if _PICKLE_HEAD.match(head) or (_PAGE.search(head) and b"<" in head[:100]):
        return True
    if head.lstrip()[:1] not in (b"{", b"["):
        return False
    return (b'"segments"' in head and b'"traceEvents"' not in head) or (
        b'"total_size"' in head and b'"segment_type"' in head
    )


def read_snapshot(path: Path, sink: Sink) -> None:
    """Put blocks, reserved memory and what cannot be known into the sink."""
    recorded = RecordedFile(path)
    data = recorded.read_whole()
    if recorded.error:
        raise InputError(f"{path.name} is packed and cut", "copy the file again")
    segments, traces = _split_snapshot(path, _load_data(path, data))
    by_device: dict[int, list[dict[str, Any]]] = {device: [] for device in range(len(traces))}
    for segment in segments:
        by_device.setdefault(to_int(segment.get("device")) or 0, []).append(segment)
    found = [
        read_device(device, by_device[device], traces[device] if 0 <= device < len(traces) else [])
        for device in sorted(by_device)[:1024]
    ]
    found = [memory for memory in found if memory.segments or memory.entries]
    if not found:
        raise InputError(f"{path.name} is a snapshot without any segment or history", _AGAIN)
    sink.info.update(format="CUDA allocator snapshot", memory=[_facts_of(memory) for memory in found])
    for memory in found:
        _add_memory(memory, sink)
        where, verdict = f"cuda:{memory.device}: " if len(found) > 1 else "", _explain_late_start(memory)
        if verdict:
            sink.add_note(where + verdict)
            sink.cannot_tell(f"true peak: {where}{verdict}")
        if memory.unknown_frees:
            sink.add_note(
                f"{where}lower bound from the history alone: {memory.history_peak_bytes} B; "
                "it leaves out what was allocated before"
            )
        for failed in memory.failed[:3]:
            sink.add_note(
                f"{where}ran out of memory: a request of {failed['bytes']} B failed with "
                f"{failed['device_free_bytes']} B free on the device"
            )
        sink.add_count("history entries that do not fit together", memory.odd_entries)
    sink.cannot_tell("categories and modules: a snapshot knows blocks and stacks, not what they are for")


def _load_data(path: Path, data: bytes) -> Any:
    if _PICKLE_HEAD.match(data):
        return load_plain(data)
    try:
        if data.lstrip()[:1] in (b"{", b"["):
            return msgspec.json.decode(data)
        embedded = _EMBEDDED.search(data)
        if embedded is None:
            raise InputError(f"{path.name} is a page without its snapshot", "give the pickle it was made of")
        return load_plain(base64.b64decode(embedded[1]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, binascii.Error) as error:
        raise InputError(f"{path.name} is damaged: {str(error)[:120]}", _AGAIN) from error


def _split_snapshot(path: Path, value: Any) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """Segments and histories; a bare list of segments is what `torch.cuda.memory_snapshot()` returns."""
    raw = {"segments": value} if isinstance(value, list) else value
    if not isinstance(raw, dict) or not isinstance(raw.get("segments"), list):
        raise InputError(f"{path.name} holds plain data, but no allocator snapshot", _AGAIN)
    segments = [item for item in raw["segments"] if isinstance(item, dict)]
    given = raw.get("device_traces")
    traces = [item if isinstance(item, list) else [] for item in given] if isinstance(given, list) else []
    # a pickle may name the same list a million times
    blocks = (segment.get("blocks") for segment in segments)
    size = sum(len(found) for found in (*blocks, *traces) if isinstance(found, list))
    require_within("snapshot_values", size, path.name)
    return segments, traces


def _facts_of(memory: DeviceMemory) -> dict[str, Any]:
    return {
        "device": f"cuda:{memory.device}",
        "segments": memory.segments,
        "entries": memory.entries,
        "live_bytes": memory.live_bytes,
        "live_blocks": memory.live_blocks,
        "reserved_bytes": memory.reserved_bytes,
        "fragmentation_bytes": memory.reserved_bytes - memory.live_bytes,
        "largest_free_bytes": memory.free_blocks,
        "unknown_frees": memory.unknown_frees,
        "unknown_freed_bytes": memory.unknown_freed_bytes,
        "history_peak_bytes": memory.history_peak_bytes,
        "history_peak_is": "a lower bound: the history alone, without blocks allocated before it began",
        "out_of_memory": memory.failed,
        "verdict": _explain_late_start(memory),
    }


def _explain_late_start(memory: DeviceMemory) -> str | None:
    """The words for a history that does not reach back to the first allocation."""
    if memory.unknown_frees:
        return (
            f"recording began late: {memory.unknown_frees} frees of unknown blocks; "
            "the true peak cannot be known from this file"
        )
    older = sum(block.alloc_ns is None for block in memory.blocks)
    if memory.entries and older:
        return (
            f"recording began late: {older} blocks were allocated before; "
            "the true peak before that cannot be known from this file"
        )
    return None if memory.entries else "no history: the peak cannot be known from this file, only its end"


def _add_memory(memory: DeviceMemory, sink: Sink) -> None:
    lines: dict[int, tuple[str | None, str | None]] = {}
    for block in memory.blocks:
        if id(block.frames) not in lines:  # the same stack is one object, however many blocks it made
            lines[id(block.frames)] = find_code_line(block.frames)
    blocks, first, device = memory.blocks, sink.rows.get("memory", 0), f"cuda:{memory.device}"
    columns = {
        "bytes": [block.size for block in blocks],
        "alloc_ns": [block.alloc_ns for block in blocks],
        "free_ns": [block.free_ns for block in blocks],
        "operator": [lines[id(block.frames)][1] for block in blocks],
        "stack": [lines[id(block.frames)][0] for block in blocks],
    }
    schema = polars_schema("memory")
    frame = pl.DataFrame(columns, schema={name: schema[name] for name in columns})
    numbers = pl.int_range(first, first + len(blocks))
    sink.add_rows(
        "memory", frame.with_columns(block=numbers, device=pl.lit(device), category=pl.lit("unknown"))
    )
    moments = [(time_ns, device, "reserved", size) for time_ns, size in memory.reserved]
    last_ns = memory.reserved[-1][0]
    moments += [(last_ns, device, "largest_free", size) for size in memory.free_blocks]
    names = ("time_ns", "device", "level", "bytes")
    sink.add_rows("memory_levels", dict(zip(names, zip(*moments, strict=True), strict=True)))


PART = Format("memory snapshot", recognize_head, read_snapshot, order=20)

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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from detscope.errors import InputError
from detscope.ingest.files import RecordedFile
from detscope.ingest.sink import Format, Sink
from detscope.ingest.unpickle import load_plain
from detscope.limits import require_within
from detscope.runs.writer import polars_schema

FREE_BLOCKS = 5
_OPERATOR = re.compile(r"\bat::_ops::(\w+)::")
_OVERLOAD = re.compile(r"_[A-Z]\w*$")  # add_Tensor
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/torch/|\\torch\\|torchinductor|^<|/lib/python3|torch_compile_debug"
)
_SEGMENT_SIGN = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}

_PICKLE_HEAD = re.compile(rb"\x80[\x02-\x05]")
_PAGE = re.compile(rb"add_local_files|MemoryViz\.js")
_EMBEDDED = re.compile(rb'"base64"\s*:\s*"([A-Za-z0-9+/=\s]+)"')
_AGAIN = "record it again: torch.cuda.memory._dump_snapshot(file)"


@dataclass
class SnapshotBlock:
    """One block; None as a time is before the first or after the last entry of the history."""

    size: int
    alloc_ns: int | None = None
    free_ns: int | None = None
    frames: Any = None


@dataclass
class DeviceMemory:
    """What a snapshot says about one device."""

    device: int
    blocks: list[SnapshotBlock] = field(default_factory=list)
    segments: int = 0
    entries: int = 0
    reserved_bytes: int = 0
    live_bytes: int = 0
    live_blocks: int = 0
    free_blocks: list[int] = field(default_factory=list)  # the largest, in segments of the allocator
    free_bytes: int = 0  # of all of them: cached, and in nobody's use
    unknown_frees: int = 0  # of blocks whose allocation is not in the history
    unknown_freed_bytes: int = 0
    history_peak_bytes: int = 0  # of blocks that the history saw allocated: a lower bound
    odd_entries: int = 0
    reserved: list[tuple[int, int]] = field(default_factory=list)  # (time, bytes from then on)
    first_ns: int | None = None
    last_ns: int | None = None
    failed: list[dict[str, int | None]] = field(default_factory=list)  # requests that ran out of memory


def to_int(value: object) -> int | None:
    """A whole number as it should be in these files."""
    return value if type(value) is int and -(2**62) < value < 2**62 else None


def _to_time(value: object) -> int | None:
    number = to_int(value)
    return number if number is not None and 0 <= number < 2**52 else None


def to_text(value: object) -> str:
    """A text; of anything else nothing: lists that share their parts would be endless as text."""
    return value if isinstance(value, str) else ""


def read_device(device: int, segments: list[dict[str, Any]], entries: list[Any]) -> DeviceMemory:
    """Follow the history, then join it with what the segments say is alive at its end."""
    memory = DeviceMemory(device, segments=len(segments), entries=len(entries))
    open_blocks = _follow_blocks(memory, entries)
    for address, size, state, frames in _list_blocks(segments):
        if state.startswith("inactive"):
            memory.free_blocks.append(size)
            memory.free_bytes += size
        elif state.startswith("active_allocated") or state == "active":
            memory.live_bytes += size
            memory.live_blocks += 1
            known = open_blocks.pop(address, None)
            if known is None:  # older than the history
                memory.blocks.append(SnapshotBlock(size, frames=frames))
            else:  # the history tells what was asked for, the segment what it takes
                known.size = size
    memory.odd_entries += len(open_blocks)  # allocated, never freed, and yet not there at the end
    memory.free_blocks = sorted(memory.free_blocks, reverse=True)[:FREE_BLOCKS]
    memory.reserved_bytes = sum(to_int(segment.get("total_size")) or 0 for segment in segments)
    _follow_reserved(memory, entries)
    return memory


def _follow_blocks(memory: DeviceMemory, entries: list[Any]) -> dict[int, SnapshotBlock]:
    """Allocations and frees in order; returns the blocks that were not freed, by address."""
    opened: dict[int, SnapshotBlock] = {}
    awaiting: set[int] = set()  # freed already, the second entry of the same free is still to come
    level, last_us, within_us = 0, -1, 0
    for entry in entries:
        action = to_text(entry.get("action")) if isinstance(entry, dict) else None
        address, size = (to_int(entry.get(key)) for key in ("addr", "size")) if action else (None, None)
        time_us = _to_time(entry.get("time_us")) if action else None
        time_ns = None
        if time_us is not None:  # entries of the same microsecond get rising ns, so that their order stays
            within_us = min(within_us + 1, 999) if time_us == last_us else 0
            time_ns, last_us = time_us * 1000 + within_us, time_us
            memory.first_ns = time_ns if memory.first_ns is None else memory.first_ns
            memory.last_ns = time_ns
        if action == "oom":
            memory.failed.append({"bytes": size, "device_free_bytes": to_int(entry.get("device_free"))})
        elif action not in ("alloc", "free", "free_requested", "free_completed"):
            memory.odd_entries += action not in (*_SEGMENT_SIGN, "snapshot")
        elif address is None or size is None or size < 0:
            memory.odd_entries += 1
        elif action == "alloc":
            opened[address] = block = SnapshotBlock(size, time_ns, frames=entry.get("frames"))
            memory.blocks.append(block)
            awaiting.discard(address)
            level += size
            memory.history_peak_bytes = max(memory.history_peak_bytes, level)
        elif action == "free_completed" and address in awaiting:
            awaiting.discard(address)
        else:
            awaiting.add(address)
            freed = opened.pop(address, None)
            if freed is None:
                memory.unknown_frees += 1
                memory.unknown_freed_bytes += size
                memory.blocks.append(SnapshotBlock(size, None, time_ns))
            else:
                freed.free_ns = time_ns
                level -= freed.size
    return opened


def _list_blocks(segments: Iterable[dict[str, Any]]) -> Iterator[tuple[int, int, str, Any]]:
    """Address, size, state and frames of every block; old files give no address and keep frames apart."""
    for segment in segments:
        blocks = segment.get("blocks")
        address = to_int(segment.get("address")) or 0
        for block in blocks if isinstance(blocks, list) else []:
            if not isinstance(block, dict):
                continue
            size, own = to_int(block.get("size")) or 0, to_int(block.get("address"))
            frames, history = block.get("frames"), block.get("history")
            if not frames and isinstance(history, list) and history and isinstance(history[0], dict):
                frames = history[0].get("frames")
            address = address if own is None else own
            yield address, size, to_text(block.get("state")), frames
            address += size


def _follow_reserved(memory: DeviceMemory, entries: list[Any]) -> None:
    """Reserved bytes over time: known at the end, so followed backwards."""
    level, backwards = memory.reserved_bytes, []
    for entry in reversed(entries):
        sign = _SEGMENT_SIGN.get(to_text(entry.get("action"))) if isinstance(entry, dict) else None
        if sign:
            size, time_us = to_int(entry.get("size")), _to_time(entry.get("time_us"))
            if size is not None and time_us is not None:
                backwards.append((time_us * 1000, level))
                level -= sign * size
    if backwards and memory.first_ns is not None:
        memory.reserved = [(memory.first_ns, level), *reversed(backwards)]
    memory.reserved.append((memory.last_ns or 0, memory.reserved_bytes))


def find_code_line(frames: Any) -> tuple[str | None, str | None]:
    """The innermost line of user code without the folders of the machine, and the operator."""
    line = fallback = operator = None
    for frame in frames if isinstance(frames, list) else []:
        if not isinstance(frame, dict):
            continue
        file, name = to_text(frame.get("filename")), to_text(frame.get("name"))
        found = _OPERATOR.search(name) if operator is None else None
        operator = f"aten::{_OVERLOAD.sub('', found[1])}" if found else operator
        if file.endswith(".py"):
            # by its last folder and name: where it lies on the recording machine is nobody's business
            shown = "/".join(file.replace("\\", "/").split("/")[-2:])
            words = f"{shown}:{to_int(frame.get('line'))} {name}"
            fallback = fallback or words
            if not _LIBRARY.search(file):
                line = words
                break
    return line or fallback, operator


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
        "free_cached_bytes": memory.free_bytes,
        # how much of it cannot serve one request as large as the largest free block
        "fragmentation": 1 - memory.free_blocks[0] / memory.free_bytes if memory.free_bytes else None,
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

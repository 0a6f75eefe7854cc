"""The lives of blocks, out of the segments and the history of an allocator snapshot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

FREE_BLOCKS = 5
_OPERATOR = re.compile(r"\bat::_ops::(\w+)::")
_OVERLOAD = re.compile(r"_[A-Z]\w*$")  # add_Tensor
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/torch/|\\torch\\|torchinductor|^<|/lib/python3|torch_compile_debug"
)
_SEGMENT_SIGN = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


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

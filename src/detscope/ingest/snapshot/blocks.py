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
class Block:
    """One block; None as a time is before the first or after the last entry of the history."""

    size: int
    alloc_ns: int | None = None
    free_ns: int | None = None
    frames: Any = None


@dataclass
class DeviceMemory:
    """What a snapshot says about one device."""

    device: int
    blocks: list[Block] = field(default_factory=list)
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


def whole(value: object) -> int | None:
    """A whole number as it should be in these files."""
    return value if type(value) is int and -(2**62) < value < 2**62 else None


def text(value: object) -> str:
    """A text; of anything else nothing: lists that share their parts would be endless as text."""
    return value if isinstance(value, str) else ""


def read_device(device: int, segments: list[dict[str, Any]], entries: list[Any]) -> DeviceMemory:
    """Follow the history, then join it with what the segments say is alive at its end."""
    memory = DeviceMemory(device, segments=len(segments), entries=len(entries))
    open_blocks = _follow(memory, entries)
    for address, size, state, frames in _inventory(segments):
        if state.startswith("inactive"):
            memory.free_blocks.append(size)
        elif state.startswith("active_allocated") or state == "active":
            memory.live_bytes += size
            memory.live_blocks += 1
            known = open_blocks.pop(address, None)
            if known is None:  # older than the history
                memory.blocks.append(Block(size, frames=frames))
            else:  # the history tells what was asked for, the segment what it takes
                known.size = size
    memory.odd_entries += len(open_blocks)  # allocated, never freed, and yet not there at the end
    memory.free_blocks = sorted(memory.free_blocks, reverse=True)[:FREE_BLOCKS]
    memory.reserved_bytes = sum(whole(segment.get("total_size")) or 0 for segment in segments)
    _follow_reserved(memory, entries)
    return memory


def _follow(memory: DeviceMemory, entries: list[Any]) -> dict[int, Block]:
    """Allocations and frees in order; returns the blocks that were not freed, by address."""
    opened: dict[int, Block] = {}
    awaiting: set[int] = set()  # freed already, the second entry of the same free is still to come
    level = 0
    clock = _Clock()
    for entry in entries:
        action = text(entry.get("action")) if isinstance(entry, dict) else None
        address, size = (whole(entry.get(key)) for key in ("addr", "size")) if action else (None, None)
        time_ns = clock.time_ns(entry.get("time_us")) if action else None
        if time_ns is not None:
            memory.first_ns = time_ns if memory.first_ns is None else memory.first_ns
            memory.last_ns = time_ns
        if action == "oom":
            memory.failed.append({"bytes": size, "device_free_bytes": whole(entry.get("device_free"))})
        elif action not in ("alloc", "free", "free_requested", "free_completed"):
            memory.odd_entries += action not in (*_SEGMENT_SIGN, "snapshot")
        elif address is None or size is None or size < 0:
            memory.odd_entries += 1
        elif action == "alloc":
            opened[address] = block = Block(size, time_ns, frames=entry.get("frames"))
            memory.blocks.append(block)
            awaiting.discard(address)
            level += size
            memory.history_peak_bytes = max(memory.history_peak_bytes, level)
        elif action == "free_completed" and address in awaiting:
            awaiting.discard(address)
        else:
            awaiting.add(address)
            block_or_none = opened.pop(address, None)
            if block_or_none is None:
                memory.unknown_frees += 1
                memory.unknown_freed_bytes += size
                memory.blocks.append(Block(size, None, time_ns))
            else:
                block_or_none.free_ns = time_ns
                level -= block_or_none.size
    return opened


class _Clock:
    """Entries are stamped in microseconds; those of the same one get rising ns, so that their order stays."""

    def __init__(self) -> None:
        self._last_us = -1
        self._within = 0

    def time_ns(self, time_us: object) -> int | None:
        number = whole(time_us)
        if number is None or not 0 <= number < 2**52:
            return None
        self._within = min(self._within + 1, 999) if number == self._last_us else 0
        self._last_us = number
        return number * 1000 + self._within


def _inventory(segments: Iterable[dict[str, Any]]) -> Iterator[tuple[int, int, str, Any]]:
    """Address, size, state and frames of every block; old files give no address and keep frames apart."""
    for segment in segments:
        blocks = segment.get("blocks")
        address = whole(segment.get("address")) or 0
        for block in blocks if isinstance(blocks, list) else []:
            if not isinstance(block, dict):
                continue
            size = whole(block.get("size")) or 0
            own = whole(block.get("address"))
            history = block.get("history")
            frames = block.get("frames") or (
                history[0].get("frames")
                if isinstance(history, list) and history and isinstance(history[0], dict)
                else None
            )
            yield own if own is not None else address, size, text(block.get("state")), frames
            address = (own if own is not None else address) + size


def _follow_reserved(memory: DeviceMemory, entries: list[Any]) -> None:
    """Reserved bytes over time: known at the end, so followed backwards."""
    level, backwards = memory.reserved_bytes, []
    for entry in reversed(entries):
        sign = _SEGMENT_SIGN.get(text(entry.get("action"))) if isinstance(entry, dict) else None
        if sign:
            size, time_us = whole(entry.get("size")), whole(entry.get("time_us"))
            if size is not None and time_us is not None and 0 <= time_us < 2**52:
                backwards.append((time_us * 1000, level))
                level -= sign * size
    if backwards and memory.first_ns is not None:
        memory.reserved = [(memory.first_ns, level), *reversed(backwards)]
    memory.reserved.append((memory.last_ns or 0, memory.reserved_bytes))


def short_path(file: str) -> str:
    """A file by its last folder and name: where it lies on the recording machine is nobody's business."""
    return "/".join(file.replace("\\", "/").split("/")[-2:])


def place_of(frames: Any) -> tuple[str | None, str | None]:
    """The innermost line of user code without the folders of the machine, and the operator."""
    line = fallback = operator = None
    for frame in frames if isinstance(frames, list) else []:
        if not isinstance(frame, dict):
            continue
        file, name = text(frame.get("filename")), text(frame.get("name"))
        found = _OPERATOR.search(name) if operator is None else None
        operator = f"aten::{_OVERLOAD.sub('', found[1])}" if found else operator
        if file.endswith(".py"):
            words = f"{short_path(file)}:{whole(frame.get('line'))} {name}"
            fallback = fallback or words
            if not _LIBRARY.search(file):
                line = words
                break
    return line or fallback, operator

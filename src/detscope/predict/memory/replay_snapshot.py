"""The allocation events of an allocator snapshot, replayed through the allocator model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detscope.predict.memory.allocator import AllocatorSettings, CachingAllocator


@dataclass(frozen=True)
class ReplayedSnapshot:
    """Reserved bytes as the snapshot has them and as the model made them."""

    recorded_bytes: int
    modelled_bytes: int
    events: int
    blocks_before: int  # alive when the history began: placed first, in order of address

    @property
    def error(self) -> float:
        """Relative error of the model."""
        return self.modelled_bytes / self.recorded_bytes - 1


def replay_snapshot(snapshot: Mapping[str, Any], device: int = 0) -> ReplayedSnapshot:
    """Blocks older than the history first, then its allocations and frees; `snapshot` is plain data."""
    segments = [one for one in snapshot["segments"] if one.get("device", 0) == device]
    entries = snapshot["device_traces"][device]
    settings = snapshot.get("allocator_settings") or {}
    split = settings.get("max_split_size", -1)
    allocator = CachingAllocator(
        AllocatorSettings(bool(settings.get("expandable_segments")), split if split > 0 else None)
    )
    before = _blocks_before(segments, entries)
    keys = {address: key for key, address in enumerate(sorted(before))}
    for address, key in keys.items():
        allocator.allocate(key, before[address])
    next_key = len(keys)
    for entry in entries:
        if entry["action"] == "alloc":
            keys[entry["addr"]] = next_key
            allocator.allocate(next_key, entry["size"])
            next_key += 1
        elif entry["action"] == "free_completed":
            allocator.release(keys.pop(entry["addr"]))
    recorded = sum(one["total_size"] for one in segments)
    return ReplayedSnapshot(recorded, allocator.peak_reserved, len(entries), len(before))


def _blocks_before(
    segments: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]
) -> dict[int, int]:
    """Address and size of what was alive before the first event: freed unseen, or alive at the end unseen."""
    before: dict[int, int] = {}
    opened: set[int] = set()
    for entry in entries:
        if entry["action"] == "alloc":
            opened.add(entry["addr"])
        elif entry["action"] == "free_completed":
            if entry["addr"] in opened:
                opened.discard(entry["addr"])
            else:
                before[entry["addr"]] = entry["size"]
    for address, size in _alive(segments):
        if address not in opened:
            before[address] = size
    return before


def _alive(segments: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                yield block["address"], block["size"]

"""A model of CUDA's caching allocator: what is reserved for a sequence of allocations and frees.

Requests are rounded to 512 B. Up to 1 MiB they come from segments of 2 MiB, below 10 MiB from segments of
20 MiB, larger ones get a segment of their own, rounded to 2 MiB. The smallest free block that is large
enough is taken (lowest address among equals) and split where enough remains; a freed block joins its free
neighbours. When the device is full, free segments are returned and the request is tried again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20
ROUNDING = 512
SMALL_REQUEST = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT_FROM = 10 * MIB
OWN_SEGMENT_ROUNDING = 2 * MIB


@dataclass(frozen=True)
class AllocatorSettings:
    """Options of PYTORCH_CUDA_ALLOC_CONF that change what is reserved, and the device's limit."""

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    limit_bytes: int | None = None  # of reserved memory; None: never full


class DeviceFullError(Exception):
    """The modelled device has no room for a request, also after free segments were returned."""


@dataclass(slots=True, eq=False)
class _Block:
    """A piece of a segment; neighbours are linked in address order."""

    address: int
    size: int
    small: bool
    free: bool = True
    before: _Block | None = None
    after: _Block | None = None


def round_request(request_bytes: int) -> int:
    """What a request takes."""
    return max(ROUNDING, -(-request_bytes // ROUNDING) * ROUNDING)


def size_segment(size: int) -> int:
    """What is asked of the device for a block that no free one can hold."""
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT_FROM:
        return LARGE_SEGMENT
    return -(-size // OWN_SEGMENT_ROUNDING) * OWN_SEGMENT_ROUNDING


class CachingAllocator:
    """Follows allocations and frees by key; `allocated` and `reserved` are bytes, with their peaks."""

    def __init__(self, settings: AllocatorSettings | None = None) -> None:
        self._settings = settings or AllocatorSettings()
        self._free: dict[bool, list[tuple[int, int]]] = {False: [], True: []}  # (size, address)
        self._blocks: dict[int, _Block] = {}  # free ones, by address
        self._live: dict[int, _Block] = {}
        self._next_address = 0
        self._tails: dict[bool, _Block] = {}  # the end of each pool's expandable segment
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0

    def allocate_block(self, key: int, request_bytes: int) -> None:
        """Give `key` a block; DeviceFullError where the limit allows none."""
        if key in self._live:
            raise KeyError(f"{key} is allocated already")
        size = round_request(request_bytes)
        block = self._take_free(size) or self._add_segment(size)
        if block.size - size >= ROUNDING:
            self._split_block(block, size)
        block.free = False
        self._live[key] = block
        self.allocated += block.size
        if self.allocated > self.peak_allocated:  # quicker than max, and called very often
            self.peak_allocated = self.allocated

    def release_block(self, key: int) -> None:
        """Take `key`'s block back and join it with free neighbours."""
        block = self._live.pop(key)
        self.allocated -= block.size
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                self._forget_free(neighbour)
                before = block.address < neighbour.address
                first, second = (block, neighbour) if before else (neighbour, block)
                first.size += second.size
                first.after = second.after
                if second.after is not None:
                    second.after.before = first
                block = first
        self._keep_free(block)

    def return_free_segments(self) -> None:
        """`empty_cache`: whole free segments (of expandable ones: their free pages) go back to the device."""
        for block in list(self._blocks.values()):
            if self._settings.expandable_segments:
                self._unmap_pages(block)
            elif block.before is None and block.after is None:
                self._forget_free(block)
                self.reserved -= block.size

    def reset_peaks(self) -> None:
        """Peaks begin again at what there is now."""
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def _take_free(self, size: int) -> _Block | None:
        small = size <= SMALL_REQUEST
        pool = self._free[small]
        place = bisect_left(pool, (size, -1))
        if place == len(pool):
            return None
        found_size, address = pool[place]
        limit = self._settings.max_split_size_bytes
        # an oversize block is only for oversize requests, and only if little of it is wasted
        if (
            limit is not None
            and not small
            and (size < limit <= found_size or (size >= limit and found_size >= size + LARGE_SEGMENT))
        ):
            return None
        del pool[place]
        return self._blocks.pop(address)

    def _add_segment(self, size: int) -> _Block:
        small = size <= SMALL_REQUEST
        if not self._settings.expandable_segments:
            wanted = size_segment(size)
            self._make_room(wanted)
            block = _Block(self._next_address, wanted, small)
            self._next_address += wanted
            self._add_reserved(wanted)
            return block
        # one segment per pool that grows by pages of 2 or 20 MiB at its end
        self._make_room(self._count_pages(size, small))
        more = self._count_pages(size, small)  # making room may have taken the free end
        tail = self._tails.get(small)
        self._add_reserved(more)
        if tail is not None and tail.free:
            self._forget_free(tail)
            tail.size += more
            return tail
        start = (1 << 60 if small else 1 << 61) if tail is None else tail.address + tail.size
        block = _Block(start, more, small)
        if tail is not None:
            tail.after, block.before = block, tail
        self._tails[small] = block
        return block

    def _count_pages(self, size: int, small: bool) -> int:
        """Bytes of the pages that a request needs beyond the free end of its pool's segment."""
        tail = self._tails.get(small)
        page = SMALL_SEGMENT if small else LARGE_SEGMENT
        have = tail.size if tail is not None and tail.free else 0
        return -(-(size - have) // page) * page

    def _unmap_pages(self, block: _Block) -> None:
        """Whole free pages are returned; they keep their addresses, so only the end of a segment shrinks."""
        page = SMALL_SEGMENT if block.small else LARGE_SEGMENT
        gone = block.size // page * page
        if block.after is not None or not gone:
            return
        self._forget_free(block)
        block.size -= gone
        self.reserved -= gone
        if block.size:
            self._keep_free(block)
        elif block.before is not None:
            block.before.after = None
            self._tails[block.small] = block.before
        else:
            del self._tails[block.small]

    def _make_room(self, wanted: int) -> None:
        limit = self._settings.limit_bytes
        if limit is not None and self.reserved + wanted > limit:
            self.return_free_segments()
            if self.reserved + wanted > limit:
                raise DeviceFullError

    def _add_reserved(self, size: int) -> None:
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _split_block(self, block: _Block, size: int) -> None:
        rest = block.size - size
        limit = self._settings.max_split_size_bytes
        if block.small or self._settings.expandable_segments:
            split = rest >= ROUNDING
        else:
            split = rest > SMALL_REQUEST and (limit is None or size < limit)
        if not split:
            return
        remainder = _Block(block.address + size, rest, block.small)
        remainder.before, remainder.after = block, block.after
        if block.after is not None:
            block.after.before = remainder
        block.after, block.size = remainder, size
        if self._tails.get(block.small) is block:
            self._tails[block.small] = remainder
        self._keep_free(remainder)

    def _keep_free(self, block: _Block) -> None:
        block.free = True
        self._blocks[block.address] = block
        insort(self._free[block.small], (block.size, block.address))
        if self._tails and block.after is None:  # the end of an expandable segment, perhaps joined to it now
            tail = self._tails.get(block.small)
            if tail is not None and block.address <= tail.address < block.address + block.size:
                self._tails[block.small] = block

    def _forget_free(self, block: _Block) -> None:
        del self._blocks[block.address]
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.size, block.address))]


@dataclass(frozen=True)
class ReplayedSnapshot:
    """Reserved bytes as the snapshot has them and as the model made them."""

    recorded_bytes: int
    modelled_bytes: int
    events: int
    blocks_before: int  # alive when the history began: placed first, in order of address

    @property
    def relative_error(self) -> float:
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
    before = _find_earlier_blocks(segments, entries)
    keys = {address: key for key, address in enumerate(sorted(before))}
    for address, key in keys.items():
        allocator.allocate_block(key, before[address])
    next_key = len(keys)
    for entry in entries:
        if entry["action"] == "alloc":
            keys[entry["addr"]] = next_key
            allocator.allocate_block(next_key, entry["size"])
            next_key += 1
        elif entry["action"] == "free_completed":
            allocator.release_block(keys.pop(entry["addr"]))
    recorded = sum(one["total_size"] for one in segments)
    return ReplayedSnapshot(recorded, allocator.peak_reserved, len(entries), len(before))


def _find_earlier_blocks(
    segments: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]
) -> dict[int, int]:
    """Address and size of what was alive before the first event: freed unseen, or alive at the end unseen."""
    before: dict[int, int] = {}
    opened: set[int] = set()
    for entry in entries:
        if entry["action"] == "alloc":
            opened.add(entry["addr"])
        elif entry["action"] == "free_completed":
            if entry["addr"] not in opened:
                before[entry["addr"]] = entry["size"]
            opened.discard(entry["addr"])
    for block in (block for segment in segments for block in segment["blocks"]):
        if block["state"] == "active_allocated" and block["address"] not in opened:
            before[block["address"]] = block["size"]
    return before

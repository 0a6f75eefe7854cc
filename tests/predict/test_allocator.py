from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detscope.predict.memory.allocator import (
    MIB,
    AllocatorSettings,
    CachingAllocator,
    DeviceFullError,
    round_request,
)


def test_requests_are_rounded_to_512_bytes() -> None:
    assert [round_request(size) for size in (1, 512, 513, 0)] == [512, 512, 1024, 512]


@pytest.mark.parametrize(
    ("request_bytes", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_segments_are_2_or_20_mib_or_of_their_own(request_bytes: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate_block(1, request_bytes)
    assert allocator.reserved == reserved


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    for key, size in ((1, 40 * MIB), (2, 20 * MIB)):
        allocator.allocate_block(key, size)
    allocator.release_block(1)
    allocator.release_block(2)
    allocator.allocate_block(3, 18 * MIB)  # best fit: the segment of 20
    allocator.allocate_block(4, 40 * MIB)  # so that the one of 40 is still whole
    assert allocator.reserved == 60 * MIB


def test_a_freed_block_joins_its_neighbours() -> None:
    allocator = CachingAllocator()
    for key in range(4):
        allocator.allocate_block(key, 5 * MIB)  # one segment of 20
    assert allocator.reserved == 20 * MIB
    for key in (0, 2, 1, 3):
        allocator.release_block(key)
    allocator.allocate_block(9, 20 * MIB)
    assert allocator.reserved == 20 * MIB


def test_a_remainder_of_a_mib_or_less_stays_with_a_large_block() -> None:
    allocator = CachingAllocator()
    allocator.allocate_block(1, 12 * MIB)
    allocator.release_block(1)
    allocator.allocate_block(2, 11 * MIB)
    assert allocator.allocated == 12 * MIB


def test_only_whole_free_segments_are_returned() -> None:
    allocator = CachingAllocator()
    allocator.allocate_block(1, 12 * MIB)
    allocator.allocate_block(2, 5 * MIB)
    allocator.release_block(1)
    allocator.return_free_segments()
    assert (allocator.reserved, allocator.allocated) == (20 * MIB, 5 * MIB)


def test_expandable_segments_grow_at_their_end_and_leave_no_holes_of_other_sizes() -> None:
    plain, growing = CachingAllocator(), CachingAllocator(AllocatorSettings(expandable_segments=True))
    for allocator in (plain, growing):
        for key, size in enumerate((40 * MIB, 60 * MIB)):
            allocator.allocate_block(key, size)
        for key in (0, 1):
            allocator.release_block(key)
        allocator.allocate_block(7, 100 * MIB)
    assert (plain.reserved, growing.reserved) == (200 * MIB, 100 * MIB)


def test_blocks_above_the_largest_split_size_are_not_cut_up() -> None:
    allocator = CachingAllocator(AllocatorSettings(max_split_size_bytes=64 * MIB))
    allocator.allocate_block(1, 100 * MIB)
    allocator.release_block(1)
    allocator.allocate_block(2, 12 * MIB)
    assert allocator.reserved == 112 * MIB


def test_a_full_device_returns_free_segments_before_it_refuses() -> None:
    allocator = CachingAllocator(AllocatorSettings(limit_bytes=100 * MIB))
    allocator.allocate_block(1, 60 * MIB)
    allocator.release_block(1)
    allocator.allocate_block(2, 80 * MIB)
    assert allocator.reserved == 80 * MIB
    with pytest.raises(DeviceFullError):
        allocator.allocate_block(3, 40 * MIB)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MIB)), max_size=60),
    st.booleans(),
)
def test_whatever_happens_reserved_holds_allocated_and_all_can_be_returned(
    steps: list[tuple[bool, int]], expandable: bool
) -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=expandable))
    live: list[int] = []
    for key, (free, size) in enumerate(steps):
        if free and live:
            allocator.release_block(live.pop(size % len(live)))
        else:
            allocator.allocate_block(key, size)
            live.append(key)
        assert allocator.allocated <= allocator.reserved <= allocator.peak_reserved
    for key in live:
        allocator.release_block(key)
    allocator.return_free_segments()
    assert (allocator.allocated, allocator.reserved) == (0, 0)

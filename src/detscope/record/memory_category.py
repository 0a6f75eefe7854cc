"""What a block of memory was for: by who held it, else by when and where it was made and let go."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from detscope.record.memory.trace import NO_OPERATOR, Place

ACTIVATIONS, TEMPORARY, WORKSPACE, UNKNOWN = "activations", "temporary", "workspace", "unknown"
ALLOCATED_BEFORE = -1  # as a step


class Block:
    """A block of memory from its allocation on; without slots thousands of them would be slow."""

    __slots__ = (
        *("address", "alloc_ns", "backwards", "bytes", "category", "device", "dtype", "name", "number"),
        *("own", "phase", "place", "reported", "shape", "step"),
    )

    def __init__(
        self, number: int, address: int, size: int, device: str, alloc_ns: int, step: int, phase: str | None
    ) -> None:
        self.number = number
        self.address = address
        self.bytes = size
        self.device = device
        self.alloc_ns = alloc_ns
        self.step = step
        self.phase = phase
        self.place = Place()
        self.backwards = 0  # backward passes that had begun before it
        self.own = False  # made by the recorder and its owner between steps: no part of the account
        self.reported = True  # by the allocator; else only seen because something holds it
        self.category: str | None = None
        self.name: str | None = None
        self.shape: str | None = None
        self.dtype: str | None = None


class Release:
    """When and where a block was let go, or until when it was seen alive."""

    __slots__ = ("backwards", "last_step", "phase", "run", "step", "time_ns")

    def __init__(
        self, time_ns: int, step: int, phase: str | None, run: int, backwards: int, last_step: bool
    ) -> None:
        self.time_ns = time_ns
        self.step = step
        self.phase = phase
        self.run = run
        self.backwards = backwards  # backward passes that count as having begun before it
        self.last_step = last_step  # recording ended before it was let go


def category_of(block: Block, release: Release, backward_operators_ns: Sequence[int]) -> str:
    """The category of a block whose life is known."""
    if block.category is not None:
        return block.category
    if block.step == ALLOCATED_BEFORE:
        return UNKNOWN
    same_step = release.step == block.step
    if same_step and block.place.run != NO_OPERATOR and block.place.run == release.run:
        return WORKSPACE
    if block.place.direction == "recompute":
        used = bisect_right(backward_operators_ns, release.time_ns) > bisect_right(
            backward_operators_ns, block.alloc_ns
        )
        return ACTIVATIONS if used or not same_step else TEMPORARY
    if block.phase in ("backward", "optimizer"):
        return TEMPORARY if same_step and not release.last_step else UNKNOWN
    return _of_forward(block, release, same_step)


def _of_forward(block: Block, release: Release, same_step: bool) -> str:
    """Made before the backward pass: kept for it, an input, or neither."""
    if block.phase == "transfer" and release.phase != "transfer":
        return "inputs"
    if release.backwards > block.backwards:
        return ACTIVATIONS
    if same_step and not release.last_step:
        return TEMPORARY
    # without a backward pass: what a pass gave out is let go when the next one replaces it
    if block.phase == "forward" and release.step - block.step <= 1:
        return TEMPORARY
    return UNKNOWN

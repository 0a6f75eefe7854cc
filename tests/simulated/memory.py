"""Memory of a simulated device, as torch's allocator holds it: rounded blocks out of reserved segments."""

from __future__ import annotations

BLOCK, SEGMENT = 512, 2 << 20  # bytes that torch's allocator rounds to (c10/core/AllocatorConfig.h)


class Memory:
    """What torch's allocator holds on a device."""

    def __init__(self, capacity: int, context: int = 300 << 20) -> None:
        self.capacity, self.context = capacity, context  # the driver's own share is the context
        self.allocated = self.peak = self.reserved = self.peak_reserved = self.failures = 0
        self.calls = 0  # of the driver, for memory
        self.blocks: dict[int, tuple[int, int]] = {}  # by key: address, bytes

    @property
    def free(self) -> int:
        return self.capacity - self.context - self.reserved

    def allocate(self, key: int, address: int, size: int) -> bool:
        """Take a block; False where it does not fit."""
        size = -(-size // BLOCK) * BLOCK
        needed = -(-(self.allocated + size) // SEGMENT) * SEGMENT
        if needed > self.capacity - self.context:
            self.failures += 1
            return False
        self.blocks[key] = (address, size)
        self.calls += needed > self.reserved
        self.allocated += size
        self.reserved = max(self.reserved, needed)
        self.peak, self.peak_reserved = max(self.peak, self.allocated), max(self.peak_reserved, self.reserved)
        return True

    def release(self, key: int) -> None:
        self.allocated -= self.blocks.pop(key, (0, 0))[1]

    def empty_cache(self) -> None:
        self.reserved = -(-self.allocated // SEGMENT) * SEGMENT

    def forget_peaks(self) -> None:
        self.peak, self.peak_reserved = self.allocated, self.reserved

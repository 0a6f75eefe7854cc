"""A device behind a queue: work takes planted time there, launching and waiting take planted time here."""

from __future__ import annotations

from detscope.machine.accelerator import Accelerator


class QueuedDevice(Accelerator):
    """Its clock and its host's are simulated; `compute` is what a launched kernel does to both."""

    has_clock = True

    def __init__(self, name: str = "cuda:0") -> None:
        super().__init__(name)
        self.host_ns = self.free_ns = self.waits = 0

    def compute(self, launch_ns: int, work_ns: int) -> None:
        self.host_ns += launch_ns
        self.free_ns = max(self.free_ns, self.host_ns) + work_ns

    def perf_counter_ns(self) -> int:
        """In the place of the module `time`'s."""
        return self.host_ns

    def make_mark(self) -> list[int]:
        return []

    def put_mark(self, mark: list[int]) -> int:
        mark.append(max(self.free_ns, self.host_ns))
        return 0

    def elapsed_ns(self, first: list[int], last: list[int]) -> int:
        return last[0] - first[0]

    def wait(self) -> None:
        self.waits += 1
        self.host_ns = max(self.host_ns, self.free_ns) + 50_000

"""A device whose queue lags behind, for tests of what is read late: every mark takes it a microsecond."""

from __future__ import annotations

from detscope.machine.accelerator import Accelerator


class LaggingDevice(Accelerator):
    """Marks are passed when `lag` later ones were queued, or when somebody waits."""

    has_clock = True

    def __init__(self, name: str = "lagging", lag: int = 400) -> None:
        super().__init__(name)
        self.lag = lag
        self.queued = self.passed = self.waits = 0
        self.capturing = False
        self.broken_after: int | None = None  # marks after which it answers nothing any more
        self.asked_while_capturing = 0

    def _check(self) -> None:
        self.asked_while_capturing += self.capturing
        if self.broken_after is not None and self.queued >= self.broken_after:
            raise RuntimeError("CUDA error: device-side assert triggered\nCompile with ...")

    def make_mark(self) -> list[int]:
        return [0]

    def put_mark(self, mark: list[int]) -> int:
        self._check()
        self.queued += 1
        mark[0] = self.queued
        return 7

    def has_passed(self, mark: list[int]) -> bool:
        self._check()
        return mark[0] <= max(self.passed, self.queued - self.lag)

    def elapsed_ns(self, first: list[int], last: list[int]) -> int:
        if not (self.has_passed(first) and self.has_passed(last)):
            raise RuntimeError("both events must be complete")
        return (last[0] - first[0]) * 1000

    def is_capturing(self) -> bool:
        return self.capturing

    def wait(self) -> None:
        self._check()
        self.waits += 1
        self.passed = self.queued

"""Which batches a step used: trainers fetch the next one before they use the last."""

from __future__ import annotations

from detscope.record.content import BatchContent


class FetchedBatches:
    """Batches of one pass over a loader that no step has used yet."""

    def __init__(self) -> None:
        self._waiting: list[BatchContent] = []
        self._ahead = 0  # that the last step left to the next
        self._begun = False  # a step has used some

    def add_batch(self, content: BatchContent) -> None:
        """One was fetched."""
        self._waiting.append(content)

    def take_used(self, iterations: int) -> list[BatchContent]:
        """What a step of so many iterations used; the rest was fetched ahead.

        Unless more and more is left: then an iteration takes several.
        """
        left = max(0, len(self._waiting) - iterations)
        if self._begun and left > self._ahead:
            left = 0
        used = self._waiting[: len(self._waiting) - left]
        self._waiting, self._ahead, self._begun = self._waiting[len(used) :], left, True
        return used

    def drop_unused(self) -> None:
        """No step came of what was fetched, beside what is always fetched ahead."""
        self._waiting = self._waiting[max(0, len(self._waiting) - self._ahead) :]

"""Memory of a training step by simulation: lifetimes replayed through the allocator, no sample needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detscope.predict.memory.allocator import AllocatorSettings, CachingAllocator
from detscope.predict.memory.events import MemoryEvent, live_by_category
from detscope.predict.layers.graph import LayerGraph
from detscope.predict.memory.lifetimes import TrainingPlan, TrainingStep


@dataclass(frozen=True)
class StepMemory:
    """Peaks of one step, in bytes, and what the peak of allocated memory was made of."""

    allocated: int
    reserved: int
    categories: dict[str, int]


@dataclass(frozen=True)
class SimulatedMemory:
    """A first step and a later one: before the first, neither gradients nor optimizer state exist."""

    first: StepMemory
    later: StepMemory
    assumed: tuple[str, ...]

    def averaged(self) -> tuple[float, float]:
        """Allocated and reserved bytes as recorded on the TX2: (2 first + second + 2 third) / 5."""
        return (
            (2 * self.first.allocated + 3 * self.later.allocated) / 5,
            (2 * self.first.reserved + 3 * self.later.reserved) / 5,
        )


def simulate_training(
    graph: LayerGraph,
    plan: TrainingPlan,
    settings: AllocatorSettings | None = None,
    *,
    categories: bool = True,
) -> SimulatedMemory:
    """Two steps of a network; free segments are returned before each, as the recorded runs did."""
    step, replay = TrainingStep(graph, plan), Replay(settings)
    replay.run(step.build())
    measured = []
    for _ in range(2):
        replay.begin_step()
        replay.run(step.step())
        measured.append(replay.peaks(categories=categories))
    assumed = [f"convolution workspace: Winograd, {plan.workspace}"]
    assumed += [f"operation {kind}: keeps input and output" for kind in graph.unknown_kinds]
    return SimulatedMemory(measured[0], measured[1], tuple(assumed))


class Replay:
    """Events through the allocator; what the peak was made of is counted afterwards."""

    def __init__(self, settings: AllocatorSettings | None = None) -> None:
        self.allocator = CachingAllocator(settings)
        self._events: list[MemoryEvent] = []
        self._peak_at = 0

    def begin_step(self) -> None:
        """Return free segments and let peaks begin again."""
        self.allocator.return_free_segments()
        self.allocator.reset_peaks()
        self._peak_at = len(self._events)

    def run(self, events: Sequence[MemoryEvent]) -> None:
        """Follow all events."""
        allocator = self.allocator
        for place, event in enumerate(events, len(self._events) + 1):
            if event.bytes:
                before = allocator.peak_allocated
                allocator.allocate(event.key, event.bytes)
                if allocator.peak_allocated > before:
                    self._peak_at = place
            else:
                allocator.release(event.key)
        self._events.extend(events)

    def peaks(self, *, categories: bool = True) -> StepMemory:
        """Peaks since the step began; what they were made of takes a pass of its own."""
        allocator = self.allocator
        parts = live_by_category(self._events[: self._peak_at]) if categories else {}
        return StepMemory(allocator.peak_allocated, allocator.peak_reserved, parts)

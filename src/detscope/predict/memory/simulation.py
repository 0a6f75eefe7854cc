"""Memory of a training step by simulation: lifetimes replayed through the allocator, no sample needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detscope.predict.layers.graph import LayerGraph
from detscope.predict.memory.allocator import CachingAllocator
from detscope.predict.memory.lifetimes import (
    EventLog,
    MemoryEvent,
    TrainingPlan,
    TrainingStep,
    add_network,
    count_tensor_bytes,
    sum_live_categories,
)

ASSUMED = "no scratch memory of convolutions in a forward pass"


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

    def average_steps(self) -> tuple[float, float]:
        """Allocated and reserved bytes as recorded on the TX2: (2 first + second + 2 third) / 5."""
        return (
            (2 * self.first.allocated + 3 * self.later.allocated) / 5,
            (2 * self.first.reserved + 3 * self.later.reserved) / 5,
        )


def simulate_training(graph: LayerGraph, plan: TrainingPlan) -> SimulatedMemory:
    """Two steps of a network; free segments are returned before each, as the recorded runs did."""
    step, replay = TrainingStep(graph, plan), MemoryReplay()
    replay.replay_events(step.build_network())
    measured = []
    for _ in range(2):
        replay.begin_step()
        replay.replay_events(step.run_step())
        measured.append(replay.measure_peaks())
    assumed = [f"convolution workspace: Winograd, {plan.workspace}"]
    assumed += [f"operation {kind}: keeps input and output" for kind in graph.unknown_kinds]
    return SimulatedMemory(measured[0], measured[1], tuple(assumed))


class MemoryReplay:
    """Events through the allocator; what the peak was made of is counted afterwards."""

    def __init__(self) -> None:
        self.allocator = CachingAllocator()
        self._events: list[MemoryEvent] = []
        self._peak_at = 0

    def begin_step(self) -> None:
        """Return free segments and let peaks begin again."""
        self.allocator.return_free_segments()
        self.allocator.reset_peaks()
        self._peak_at = len(self._events)

    def replay_events(self, events: Sequence[MemoryEvent]) -> None:
        """Follow all events."""
        allocator = self.allocator
        for place, event in enumerate(events, len(self._events) + 1):
            if event.bytes:
                before = allocator.peak_allocated
                allocator.allocate_block(event.key, event.bytes)
                if allocator.peak_allocated > before:
                    self._peak_at = place
            else:
                allocator.release_block(event.key)
        self._events.extend(events)

    def measure_peaks(self) -> StepMemory:
        """Peaks since the step began; what they were made of takes a pass of its own."""
        parts = sum_live_categories(self._events[: self._peak_at])
        return StepMemory(self.allocator.peak_allocated, self.allocator.peak_reserved, parts)


def simulate_inference(graph: LayerGraph, batch: int) -> StepMemory:
    """Peaks of a forward pass without gradients; nothing is kept for a backward pass."""
    replay = MemoryReplay()
    replay.replay_events(list_forward_events(graph, batch))
    return replay.measure_peaks()


def list_forward_events(graph: LayerGraph, batch: int) -> list[MemoryEvent]:
    """Parameters and images come first and stay; every other tensor goes after its last use."""
    log = EventLog()
    first = graph.operations[0].inputs[0]
    blocks = {first: add_network(log, graph, batch)}
    last_use = {tensor: place for place, one in enumerate(graph.operations) for tensor in one.inputs}
    for place, operation in enumerate(graph.operations):
        if not operation.in_place:
            blocks[operation.output] = log.add_block(
                count_tensor_bytes(operation.output_shape, batch), "temporary", operation.stage
            )
        for tensor in dict.fromkeys(operation.inputs):
            if last_use[tensor] == place and tensor not in (first, operation.output):
                log.end_block(blocks.pop(tensor))
    return log.take_events()

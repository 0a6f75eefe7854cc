"""A network traced at two batch sizes, and all memory figures that follow: on a CPU or CUDA, at any batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from detscope.predict.layers.graph import LayerGraph
from detscope.predict.memory.lifetimes import MemoryEvent, MemoryReplay, StepMemory, count_winograd
from detscope.predict.trace.graph import count_side_operators, make_graph
from detscope.predict.trace.peaks import (
    CpuPeak,
    categorize_block,
    extrapolate_events,
    find_peak,
    make_extrapolation,
    make_timelines,
    steps_match,
)
from detscope.predict.trace.scratch import ScratchSizes
from detscope.predict.trace.step import BACKWARD, FORWARD, StepLog, StorageBlock, TracedStep, trace_step

if TYPE_CHECKING:
    from detscope.zoo.networks import Network

_FIRST = 2  # batch norm of a single pixel needs two images


@dataclass(frozen=True)
class TracedNetwork:
    """Two traced steps; everything else is worked out from them when asked for."""

    name: str
    family: str
    training: bool
    steps: tuple[TracedStep, TracedStep]
    book: ScratchSizes = field(default_factory=ScratchSizes)

    @cached_property
    def steps_match(self) -> bool:
        """Whether both steps are the same operators, so that every block can be drawn out on its own."""
        return steps_match(*self.steps)

    @cached_property
    def layer_graph(self) -> LayerGraph:
        """The layer graph of the forward pass, and what runs beside its layers."""
        graph = make_graph(self.name, self.steps[0], self.family)
        return replace(graph, beside=count_side_operators(*self.steps))

    def find_cpu_peak(self, batch: int, optimizer: str | None = "sgd") -> CpuPeak:
        """The peak of allocated bytes of one step on this machine's CPU; runs a few operators alone."""
        return find_peak(self.steps, batch, optimizer, self.book)

    def find_cuda_peak(self, batch: int, optimizer: str | None = "sgd") -> StepMemory:
        """Peaks of allocated and reserved bytes by the model of CUDA's caching allocator."""
        if self.steps_match:
            events = extrapolate_events(*make_timelines(self.steps, optimizer), batch)
            return _with_workspace(_replay_events(events), self._count_workspace(batch))
        low, high = (
            _with_workspace(peaks, self._count_workspace(step.batch))
            for peaks, step in zip(_peaks_as_traced(self.steps, optimizer), self.steps, strict=True)
        )
        extrapolate = make_extrapolation(self.steps, batch)
        return StepMemory(
            extrapolate(low.allocated, high.allocated),
            extrapolate(low.reserved, high.reserved),
            {name: extrapolate(size, high.categories[name]) for name, size in low.categories.items()},
        )

    def sum_activations(self, batch: int) -> dict[str, int]:
        """Bytes that forward leaves for backward (inference: makes), by the model's outermost parts."""
        low, high = (_made_by_stage(step, self.training) for step in self.steps)
        extrapolate = make_extrapolation(self.steps, batch)
        return {
            stage or "(the model itself)": extrapolate(size, high.get(stage, size))
            for stage, size in low.items()
        }

    @property
    def assumption_notes(self) -> tuple[str, ...]:
        """What the figures rest on besides the trace."""
        workspace = f"{self._count_workspace(1) / 1e6:.1f} MB at batch 1"
        found = ["cuda: the tensors of a step are those of a CPU"]
        found.append(f"cuda: largest Winograd workspace at the peak ({workspace})")
        if not self.steps_match:
            found.append("boxes as chosen from zeros: work on feature maps was left out")
            found.append("other batch sizes: linear between convolutions, not block by block")
        return tuple(found)

    @property
    def measurement_notes(self) -> tuple[str, ...]:
        """What was measured on this machine, where it was."""
        found = [f"cpu: scratch memory of {self.book.measured_count} operator calls that could make the peak"]
        if self.book.by_rule:
            found.append(f"cpu: {self.book.by_rule} costly calls by rule, not measured")
        return tuple(found)

    def _count_workspace(self, batch: int) -> int:
        sizes = (count_winograd(one, batch) for one in self.layer_graph.operations if self.training)
        return max(sizes, default=0)


def trace_network(network: Network, *, training: bool = True) -> TracedNetwork:
    """Trace a network at two batch sizes."""
    first = max(network.min_train_batch, _FIRST)
    low, high = (trace_step(network, batch, training=training) for batch in (first, first + 1))
    return TracedNetwork(network.name, network.base.name, training, (low, high))


def _made_by_stage(step: TracedStep, training: bool) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, block in enumerate(step.log.blocks):
        kept = categorize_block(block, number, step) == "activations"
        if block.phase == FORWARD and (kept or not training):
            found[block.stage] = found.get(block.stage, 0) + block.size_bytes
    return found


@lru_cache(maxsize=8)
def _peaks_as_traced(steps: tuple[TracedStep, TracedStep], optimizer: str | None) -> list[StepMemory]:
    """Peaks of both steps as they are: the same for every batch that is asked for."""
    return [_replay_events(line.events) for line in make_timelines(steps, optimizer)]


def _replay_events(events: Sequence[MemoryEvent]) -> StepMemory:
    replay = MemoryReplay()
    replay.replay_events(events)
    return replay.measure_peaks()


def _with_workspace(without: StepMemory, workspace: int) -> StepMemory:
    if not workspace:
        return without
    # a workspace comes and goes with its convolution; at worst that is where the peak is
    categories = {**without.categories, "workspace": without.categories["workspace"] + workspace}
    return StepMemory(without.allocated + workspace, without.reserved + workspace, categories)


def keep_gradients(traced: TracedNetwork) -> TracedNetwork:
    """As `detscope train` runs it: `zero_grad` comes between forward and backward."""
    one, other = traced.steps
    return replace(traced, steps=(_keep_in_step(one), _keep_in_step(other)))


def _keep_in_step(step: TracedStep) -> TracedStep:
    log = step.log
    backward = next((place for place, call in enumerate(log.calls) if call.phase == BACKWARD), len(log.calls))
    earlier = [log.blocks[number] for number in sorted(step.gradients)]
    first = len(log.blocks)
    blocks = [*log.blocks, *(StorageBlock(one.size_bytes, "", one.stage, "gradients") for one in earlier)]
    numbers = range(first, len(blocks))
    events = [(0, number, True) for number in numbers]
    events += [event for event in log.events if event[0] < backward]
    events += [(backward, number, False) for number in numbers]
    events += [event for event in log.events if event[0] >= backward]
    return replace(step, log=StepLog(blocks, log.calls, events))

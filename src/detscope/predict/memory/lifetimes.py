"""When the tensors of a training step come and go, worked out from a layer graph alone.

The rules are those of eager PyTorch. A tensor lives while code still needs it or backward will: convolution,
linear and batch norm keep their input, ReLU its output, max-pool its input and an 8-byte index per output,
dropout a mask; in-place operations share memory; the gradient of an addition is shared by its operands. An
operation without a rule keeps input and output, which errs on the side of too much. Replayed through the
allocator they give the memory of a step by simulation, no sample needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import NamedTuple

from detscope.predict.layers import kinds
from detscope.predict.layers.graph import LayerGraph, Operation, Shape
from detscope.predict.memory.allocator import CachingAllocator

FLOAT_BYTES = 4
INDEX_BYTES = 8
ASSUMED = "no scratch memory of convolutions in a forward pass"
RULES = ("backward", "both", "none")  # the passes in which Winograd scratch memory is asked for
_WINOGRAD_OUTPUT = 4  # tiles of 4 x 4 outputs,
_WINOGRAD_AREA = 36  # transformed as 6 x 6
_KEEPS_INPUT = frozenset(
    {kinds.CONVOLUTION, kinds.LINEAR, kinds.BATCH_NORM, kinds.MAX_POOL, kinds.AVERAGE_POOL, kinds.ACTIVATION}
)
_KEEPS_OUTPUT = frozenset({kinds.RELU})
_KEEPS_NOTHING = frozenset({kinds.ADD, kinds.CONCATENATE, kinds.DROPOUT})
CATEGORIES = ("parameters", "gradients", "optimizer", "inputs", "activations", "temporary", "workspace")


class MemoryEvent(NamedTuple):
    """A block comes (`bytes` > 0) or goes (`bytes` = 0); a tuple, because a simulation makes thousands."""

    key: int
    bytes: int
    category: str = "temporary"
    stage: str = ""


class EventLog:
    """Collects events; keys are given out in order."""

    def __init__(self) -> None:
        self.events: list[MemoryEvent] = []
        self._next_key = 0
        self._empty: set[int] = set()

    def add_block(self, size_bytes: int, category: str, stage: str = "") -> int:
        """A new block; returns its key. A block of nothing is a key without an event."""
        self._next_key += 1
        if size_bytes > 0:
            self.events.append(MemoryEvent(self._next_key, size_bytes, category, stage))
        else:
            self._empty.add(self._next_key)
        return self._next_key

    def end_block(self, key: int) -> None:
        """The block goes."""
        if key not in self._empty:
            self.events.append(MemoryEvent(key, 0))

    def take_events(self) -> list[MemoryEvent]:
        """The events so far; the log goes on empty."""
        taken, self.events = self.events, []
        return taken


def count_tensor_bytes(shape: Shape, batch: int) -> int:
    """Of a tensor whose shape is that of a batch of one."""
    return batch * prod(shape[1:]) * FLOAT_BYTES


def add_network(log: EventLog, graph: LayerGraph, batch: int) -> int:
    """Parameters, running statistics and the images: there before the first step. The images' block."""
    for operation in graph.operations:
        sizes = [elements * FLOAT_BYTES for elements in operation.parameters]
        if operation.kind == kinds.BATCH_NORM and operation.parameters:  # running mean, variance and count
            sizes += [sizes[0], sizes[0], INDEX_BYTES]
        for size in sizes:
            log.add_block(size, "parameters", operation.stage)
    return log.add_block(count_tensor_bytes(graph.input_shape, batch), "inputs")


def sum_live_categories(events: Iterable[MemoryEvent]) -> dict[str, int]:
    """Bytes that are live after the events, by category, without any rounding."""
    live: dict[int, MemoryEvent] = {}
    for event in events:
        if event.bytes:
            live[event.key] = event
        else:
            del live[event.key]
    totals = dict.fromkeys(CATEGORIES, 0)
    for event in live.values():
        totals[event.category] += event.bytes
    return totals


def count_winograd(operation: Operation, batch: int) -> int:
    """Transformed input, output and weights of a dense 3 x 3 convolution of stride 1; 0 for any other."""
    layer = operation.convolution
    if layer is None or layer.kernel != (3, 3) or layer.groups != 1:
        return 0
    if layer.stride != (1, 1) or layer.dilation != (1, 1):
        return 0
    height, width = operation.output_shape[-2:]
    tiles = batch * ceil(height / _WINOGRAD_OUTPUT) * ceil(width / _WINOGRAD_OUTPUT)
    channels = layer.in_channels + layer.out_channels
    return FLOAT_BYTES * _WINOGRAD_AREA * (tiles * channels + layer.in_channels * layer.out_channels)


@dataclass(frozen=True)
class TrainingPlan:
    """What the step is besides its network."""

    batch: int
    # tensors of the parameters' size that the optimizer keeps: SGD momentum 1, Adam 2
    optimizer_copies: int = 1
    keeps_gradients: bool = True  # zeroed and kept between steps; False: set to None
    workspace: str = "backward"  # a rule of `workspace`


class TrainingStep:
    """Writes the events of building a network and of its training steps, one after the other."""

    def __init__(self, graph: LayerGraph, plan: TrainingPlan) -> None:
        self._graph = graph
        self._plan = plan
        self._log = EventLog()
        self._holders: Counter[int] = Counter()  # of a block
        self._block_of: dict[int, int] = {}  # tensor id -> block
        self._gradient_of: dict[int, int] = {}  # tensor id -> block of its gradient
        self._saved: list[list[int]] = []
        self._parameter_gradients: dict[tuple[int, int], int] = {}
        self._has_state = False
        self._last_use: dict[int, int] = {}
        self._shape_of: dict[int, Shape] = {}
        for place, operation in enumerate(graph.operations):
            for tensor, shape in zip(operation.inputs, operation.input_shapes, strict=True):
                self._last_use[tensor] = place
                self._shape_of[tensor] = shape

    def build_network(self) -> list[MemoryEvent]:
        """Parameters, running statistics and the batch: there before the first step."""
        images = add_network(self._log, self._graph, self._plan.batch)
        self._block_of[self._graph.operations[0].inputs[0]] = images
        self._holders[images] = 1
        self._log.add_block(self._plan.batch * INDEX_BYTES, "inputs")
        return self._log.take_events()

    def run_step(self) -> list[MemoryEvent]:
        """One forward pass, backward pass and optimizer step."""
        self._run_forward()
        for place in range(len(self._graph.operations) - 1, -1, -1):
            operation = self._graph.operations[place]
            gradient = self._gradient_of.pop(operation.output, None)
            if gradient is not None:
                self._pass_gradient(operation, gradient, place)
            for block in self._saved[place]:
                self._drop_block(block)
        self._update_parameters()
        return self._log.take_events()

    def _count_bytes(self, shape: Shape) -> int:
        return count_tensor_bytes(shape, self._plan.batch)

    def _new_block(self, size_bytes: int, category: str, stage: str) -> int:
        block = self._log.add_block(size_bytes, category, stage)
        self._holders[block] = 1
        return block

    def _drop_block(self, block: int) -> None:
        self._holders[block] -= 1
        if not self._holders[block]:
            del self._holders[block]
            self._log.end_block(block)

    def _hold_block(self, block: int) -> int:
        self._holders[block] += 1
        return block

    def _run_forward(self) -> None:
        first = self._graph.operations[0].inputs[0]
        self._saved = []
        for place, operation in enumerate(self._graph.operations):
            if not operation.in_place:
                self._block_of[operation.output] = self._new_block(
                    self._count_bytes(operation.output_shape), "activations", operation.stage
                )
            self._use_workspace(operation, backward=False)
            self._saved.append(self._keep_for_backward(operation))
            for tensor in dict.fromkeys(operation.inputs):
                if self._last_use[tensor] == place and tensor not in (first, operation.output):
                    self._drop_block(self._block_of.pop(tensor))
        # cross entropy: the log-probabilities are kept; backward begins with the gradient of the output
        last = self._graph.operations[-1]
        size = self._count_bytes(last.output_shape)
        probabilities = self._new_block(size, "activations", last.stage)
        scalars = [self._new_block(FLOAT_BYTES, "activations", last.stage) for _ in range(2)]
        of_probabilities = self._new_block(size, "temporary", last.stage)
        self._gradient_of[last.output] = self._new_block(size, "temporary", last.stage)
        for block in (of_probabilities, probabilities, *scalars):
            self._drop_block(block)
        if last.output in self._block_of:
            self._drop_block(self._block_of.pop(last.output))

    def _keep_for_backward(self, operation: Operation) -> list[int]:
        """Blocks that backward will need."""
        kept = []
        known = operation.kind in _KEEPS_INPUT | _KEEPS_OUTPUT | _KEEPS_NOTHING
        if operation.kind in _KEEPS_INPUT or not known:
            kept += [self._hold_block(self._block_of[tensor]) for tensor in operation.inputs]
        if operation.kind in _KEEPS_OUTPUT or not known:
            kept.append(self._hold_block(self._block_of[operation.output]))
        out_elements = self._plan.batch * prod(operation.output_shape[1:])
        if operation.kind == kinds.MAX_POOL:
            kept.append(self._new_block(out_elements * INDEX_BYTES, "activations", operation.stage))
        elif operation.kind == kinds.DROPOUT:
            kept.append(self._new_block(out_elements, "activations", operation.stage))
        elif operation.kind == kinds.BATCH_NORM:
            channels = operation.output_shape[1] * FLOAT_BYTES
            kept += [self._new_block(channels, "activations", operation.stage) for _ in range(2)]
        return kept

    def _use_workspace(self, operation: Operation, *, backward: bool) -> None:
        wanted = self._plan.workspace == "both" or (self._plan.workspace == "backward" and backward)
        size = count_winograd(operation, self._plan.batch) if wanted else 0
        if size:
            self._log.end_block(self._log.add_block(size, "workspace", operation.stage))

    def _pass_gradient(self, operation: Operation, gradient: int, place: int) -> None:
        """The gradient of the output becomes those of inputs and parameters."""
        # the operands of an addition share it; parts of a concatenation are views, which keep all of it alive
        if operation.kind in (kinds.ADD, kinds.CONCATENATE):
            for tensor in operation.inputs:
                self._add_gradient(tensor, self._hold_block(gradient), operation)
            self._drop_block(gradient)
            return
        made = []
        for tensor, shape in zip(operation.inputs, operation.input_shapes, strict=True):
            if place > 0:  # nobody asks for the gradient of the images
                made.append((tensor, self._new_block(self._count_bytes(shape), "temporary", operation.stage)))
                self._use_workspace(operation, backward=True)
        fresh = [
            self._new_block(elements * FLOAT_BYTES, "gradients", operation.stage)
            for elements in operation.parameters
        ]
        self._use_workspace(operation, backward=True)
        self._drop_block(gradient)
        for index, block in enumerate(fresh):
            if self._parameter_gradients.setdefault((place, index), block) != block:
                self._drop_block(block)  # added to the one that is there
        for tensor, block in made:
            self._add_gradient(tensor, block, operation)

    def _add_gradient(self, tensor: int, block: int, operation: Operation) -> None:
        """The second gradient of a tensor is summed with the first into a new one."""
        first = self._gradient_of.get(tensor)
        if first is None:
            self._gradient_of[tensor] = block
            return
        size = self._count_bytes(self._shape_of[tensor])
        self._gradient_of[tensor] = self._new_block(size, "temporary", operation.stage)
        self._drop_block(first)
        self._drop_block(block)

    def _update_parameters(self) -> None:
        if not self._has_state:
            self._has_state = True
            for operation in self._graph.operations:
                for elements in operation.parameters:
                    for _ in range(self._plan.optimizer_copies):
                        self._log.add_block(elements * FLOAT_BYTES, "optimizer", operation.stage)
        if not self._plan.keeps_gradients:
            for block in self._parameter_gradients.values():
                self._drop_block(block)
            self._parameter_gradients.clear()


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

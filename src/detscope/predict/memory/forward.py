"""Memory of an inference by its layer graph: tensors live from where they are made to their last use."""

from __future__ import annotations

from math import prod

from detscope.predict.memory.allocator import AllocatorSettings
from detscope.predict.memory.events import EventLog, MemoryEvent
from detscope.predict.layers.graph import BATCH_NORM, LayerGraph, Shape
from detscope.predict.memory.lifetimes import FLOAT_BYTES, INDEX_BYTES
from detscope.predict.memory.simulation import Replay, StepMemory

ASSUMED = "no scratch memory of convolutions in a forward pass"


def simulate_inference(
    graph: LayerGraph, batch: int, settings: AllocatorSettings | None = None
) -> StepMemory:
    """Peaks of a forward pass without gradients; nothing is kept for a backward pass."""
    replay = Replay(settings)
    replay.run(forward_events(graph, batch))
    return replay.peaks()


def forward_events(graph: LayerGraph, batch: int) -> list[MemoryEvent]:
    """Parameters and images come first and stay; every other tensor goes after its last use."""
    log = EventLog()
    for operation in graph.operations:
        for elements in operation.parameters:
            log.allocate(elements * FLOAT_BYTES, "parameters", operation.stage)
        if operation.kind == BATCH_NORM and operation.parameters:  # running mean, variance and count
            for size in (operation.parameters[0] * FLOAT_BYTES,) * 2 + (INDEX_BYTES,):
                log.allocate(size, "parameters", operation.stage)
    first = graph.operations[0].inputs[0]
    blocks = {first: log.allocate(_bytes(graph.input_shape, batch), "inputs")}
    last_use = {tensor: place for place, one in enumerate(graph.operations) for tensor in one.inputs}
    for place, operation in enumerate(graph.operations):
        if not operation.in_place:
            blocks[operation.output] = log.allocate(
                _bytes(operation.output_shape, batch), "temporary", operation.stage
            )
        for tensor in dict.fromkeys(operation.inputs):
            if last_use[tensor] == place and tensor not in (first, operation.output):
                log.release(blocks.pop(tensor))
    return log.take()


def _bytes(shape: Shape, batch: int) -> int:
    return batch * prod(shape[1:]) * FLOAT_BYTES

"""Memory of an inference by its layers, on paper and by the simulation."""

from __future__ import annotations

from detscope.predict.layers.graph import Convolution, LayerGraph, Operation
from detscope.predict.layers.kinds import ADD, CONVOLUTION, RELU
from detscope.predict.memory.lifetimes import (
    TrainingPlan,
    list_forward_events,
    simulate_inference,
    simulate_training,
    sum_live_categories,
)

SHAPE = (1, 8, 16, 16)
BYTES = 8 * 16 * 16 * 4


def chain(length: int, *, shortcut: bool = False) -> LayerGraph:
    layer = Convolution(8, 8, (3, 3), padding=(1, 1))
    operations = []
    for place in range(length):
        output = place + 1
        operations.append(
            Operation(CONVOLUTION, (place,), (SHAPE,), output, SHAPE, (8 * 8 * 9,), convolution=layer)
        )
        operations.append(Operation(RELU, (output,), (SHAPE,), output, SHAPE))
    if shortcut:  # the first output is needed at the end
        operations.append(Operation(ADD, (1, length), (SHAPE, SHAPE), length + 1, SHAPE))
    return LayerGraph("chain", tuple(operations))


def peak_of(graph: LayerGraph, batch: int) -> int:
    events = list_forward_events(graph, batch)
    return max(sum(sum_live_categories(events[:end]).values()) for end in range(1, len(events) + 1))


def test_a_chain_holds_its_images_and_two_tensors_however_long_it_is() -> None:
    for length in (2, 5, 9):
        parameters = length * 8 * 8 * 9 * 4
        assert peak_of(chain(length), 3) == parameters + 3 * 3 * BYTES


def test_a_shortcut_keeps_one_tensor_more() -> None:
    assert peak_of(chain(5, shortcut=True), 2) == peak_of(chain(5), 2) + 2 * BYTES


def test_inference_needs_less_than_training_and_its_categories_add_up() -> None:
    graph = chain(6)
    inference, training = simulate_inference(graph, 4), simulate_training(graph, TrainingPlan(4))
    assert inference.allocated < training.later.allocated
    assert inference.reserved >= inference.allocated
    blocks = 6 + 1 + 2  # weights, images, two tensors; the allocator rounds each up to 512 bytes
    assert 0 <= inference.allocated - sum(inference.categories.values()) < 512 * blocks
    assert not inference.categories["gradients"] and not inference.categories["optimizer"]

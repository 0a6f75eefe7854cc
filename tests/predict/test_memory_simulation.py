from __future__ import annotations

import pytest
from made_networks import add, chain, conv, relu

from detscope.predict.layers.graph import LayerGraph, Operation
from detscope.predict.memory.lifetimes import (
    RULES,
    TrainingPlan,
    TrainingStep,
    count_winograd,
    simulate_training,
    sum_live_categories,
)
from detscope.predict.memory.model import simulate_bytes
from detscope.predict.samples import StepCase

PLANE = 64 * 64 * 4  # bytes of one channel of one image


def peak(graph: LayerGraph, **plan: object) -> dict[str, int]:
    return simulate_training(graph, TrainingPlan(batch=8, workspace="none", **plan)).later.categories


def test_a_convolution_keeps_its_input_and_an_in_place_relu_shares_its_output() -> None:
    graph = LayerGraph("x", (conv(0, 1, 3, 16, 64), relu(1, 16, 64), conv(1, 2, 16, 4, 64)))
    found = peak(graph)
    assert found["inputs"] == 8 * 3 * PLANE + 8 * 8  # images and 8-byte labels
    assert found["parameters"] == (3 * 16 + 16 * 4) * 4
    # the activations of 16 channels are kept once, not twice
    assert 8 * 16 * PLANE <= found["activations"] < 8 * (16 + 12) * PLANE


def test_a_relu_keeps_its_output_also_where_nothing_after_it_does() -> None:
    def kept(*between: Operation) -> int:
        branches = (conv(0, 1, 3, 16, 64), *between, conv(0, 2, 3, 16, 64))
        graph = LayerGraph("x", (*branches, add(1, 2, 3, 16, 64), conv(3, 4, 16, 1, 64)))
        step = TrainingStep(graph, TrainingPlan(8, workspace="none"))
        step.build_network()
        events = step.run_step()
        backward = next(
            place for place, event in enumerate(events) if event.category == "temporary" and event.bytes
        )
        return sum_live_categories(events[:backward])["activations"]

    assert kept(relu(1, 16, 64)) - kept() == 8 * 16 * PLANE


def test_momentum_appears_after_the_first_step_and_gradients_stay() -> None:
    found = simulate_training(chain(64), TrainingPlan(4))
    assert found.first.categories["optimizer"] == 0
    assert found.later.categories["optimizer"] == found.later.categories["parameters"]
    assert found.later.allocated > found.first.allocated


def test_adam_keeps_twice_what_momentum_keeps() -> None:
    assert peak(chain(64), optimizer_copies=2)["optimizer"] == 2 * peak(chain(64))["optimizer"]


def test_operands_of_an_addition_share_one_gradient() -> None:
    both = (conv(0, 1, 3, 32, 64), conv(1, 2, 32, 32, 64), add(2, 1, 3, 32, 64), conv(3, 4, 32, 1, 64))
    events = TrainingStep(LayerGraph("x", both), TrainingPlan(8, workspace="none"))
    events.build_network()
    temporary = [event.bytes for event in events.run_step() if event.bytes and event.category == "temporary"]
    # gradients of tensors 3 (shared with 2), 1 from the convolution, and their sum
    assert temporary.count(8 * 32 * PLANE) == 3


def test_every_block_of_a_step_but_gradients_and_momentum_is_gone_after_it() -> None:
    step = TrainingStep(chain(16), TrainingPlan(2))
    step.build_network()
    for _ in range(2):
        live: dict[int, str] = {}
        for event in step.run_step():
            if event.bytes:
                live[event.key] = event.category
            else:
                live.pop(event.key, None)
        assert set(live.values()) <= {"gradients", "optimizer"}
    assert not live


def test_workspace_is_that_of_winograd_for_dense_3x3_of_stride_1_alone() -> None:
    wide = conv(0, 1, 64, 64, 56, kernel=3)
    tiles = 2 * 14 * 14
    assert count_winograd(wide, 2) == 4 * 36 * (tiles * 128 + 64 * 64)
    assert count_winograd(conv(0, 1, 64, 64, 56), 2) == 0


def test_an_operation_without_a_rule_keeps_input_and_output_and_is_named_as_assumed() -> None:
    strange = Operation("swirl", (1,), ((1, 16, 64, 64),), 2, (1, 16, 64, 64))
    graph = LayerGraph("x", (conv(0, 1, 3, 16, 64), strange, conv(2, 3, 16, 1, 64)))
    found = simulate_training(graph, TrainingPlan(8))
    assert "operation swirl: keeps input and output" in found.assumed
    assert found.later.categories["activations"] >= 2 * 8 * 16 * PLANE


@pytest.mark.parametrize("rule", RULES)
def test_events_shared_by_all_batch_sizes_give_the_same_as_a_simulation_of_each(rule: str) -> None:
    graph = chain(37, depth=4, size=56)
    for batch in (1, 2, 3, 17, 128):
        alone = simulate_training(graph, TrainingPlan(batch, workspace=rule)).average_steps()
        allocated, reserved = simulate_bytes([StepCase(graph, batch)], rule)
        assert (allocated[0], reserved[0]) == alone

"""Tracing: a step whose work is left out calls the operators and makes the tensors of a real one."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from detscope.predict.layers.kinds import BATCH_NORM, CONVOLUTION, LINEAR
from detscope.predict.memory.lifetimes import TrainingPlan, simulate_training
from detscope.predict.trace.graph import count_side_operators, make_graph
from detscope.predict.trace.step import trace_step
from detscope.zoo.networks import Network, load_network


class RealOperators(TorchDispatchMode):
    """Names and output shapes of what really runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.namespace != "prim":
            made = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
            name = f"{func.namespace}.{func._schema.name.partition('::')[2]}"
            self.seen.append((name, (tuple(made[0].shape), made[0].stride()) if made else ()))
        return found


def really(network: Network, batch: int) -> list[tuple[str, tuple[Any, ...]]]:
    data = network.random_batch(batch)
    with RealOperators() as real:
        network.loss(data).backward()
    network.module.zero_grad(set_to_none=True)
    return real.seen


@pytest.fixture(scope="module")
def mobilenet() -> Network:
    return load_network("mobilenet_v3_small", image_size=64)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "convnext_tiny"])  # the second: channels last
def test_a_traced_step_is_the_real_one_operator_by_operator(name: str) -> None:
    network = load_network(name, image_size=64)
    step = trace_step(network, 2)
    traced = [
        (call.name, (call.outputs[0].shape, call.outputs[0].stride) if call.outputs else ())
        for call in step.log.calls
    ]
    assert traced == really(network, 2)


def test_tracing_leaves_weights_statistics_and_modes_as_they_were(mobilenet: Network) -> None:
    module = mobilenet.module.eval()
    module.classifier.train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    modes = [part.training for part in module.modules()]
    drawn = torch.random.get_rng_state()
    trace_step(mobilenet, 2)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [part.training for part in module.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_every_parameter_gets_a_gradient_block_of_its_size(mobilenet: Network) -> None:
    step = trace_step(mobilenet, 2)
    size = sum(parameter.numel() * 4 for parameter in mobilenet.module.parameters())
    assert sum(step.log.blocks[number].size_bytes for number in step.gradients) == size


def test_the_layer_graph_has_all_layers_at_a_batch_of_one(mobilenet: Network) -> None:
    graph = make_graph("mobilenet", trace_step(mobilenet, 3))
    modules = list(mobilenet.module.modules())
    for kind, layer in ((CONVOLUTION, torch.nn.Conv2d), (BATCH_NORM, torch.nn.BatchNorm2d)):
        wanted = sum(isinstance(module, layer) for module in modules)
        assert sum(operation.kind == kind for operation in graph.operations) == wanted
    assert sum(operation.kind == LINEAR for operation in graph.operations) == 2
    assert sum(graph.parameter_sizes) == mobilenet.parameters
    first = graph.operations[0]
    assert first.input_shapes == ((1, 3, 64, 64),) and first.output_shape == (1, 16, 32, 32)
    depthwise = [
        one.convolution for one in graph.operations if one.convolution and one.convolution.is_depthwise
    ]
    assert {layer.kernel for layer in depthwise} == {(3, 3), (5, 5)}
    assert simulate_training(graph, TrainingPlan(4)).later.allocated > 4 * mobilenet.parameters


def test_a_detector_keeps_its_stages_and_can_be_simulated() -> None:
    network = load_network("tiny_fasterrcnn")
    step = trace_step(network, 2)
    graph = make_graph("tiny_fasterrcnn", step)
    assert {"backbone", "rpn", "roi_heads"} <= {operation.stage for operation in graph.operations}
    rois = [call for call in step.log.calls if call.name == "torchvision.roi_align"]
    assert rois and sum(call.outputs[0].shape[0] for call in rois) > 20, "no proposals were chosen"
    assert simulate_training(graph, TrainingPlan(2)).later.allocated > 0
    # the RPN's head sees five levels; all that is trained is there once
    trained = sum(one.numel() for one in network.module.parameters() if one.requires_grad)
    assert sum(graph.parameter_sizes) == trained
    beside = {
        one.kind: one for one in count_side_operators(step, trace_step(network, 3)) if one.stage == "rpn"
    }
    assert beside["torchvision.nms"].calls == (0, 1)
    for kind in ("view", "small operator"):
        assert beside[kind].calls[0] > 0 and beside[kind].calls[1] > 0

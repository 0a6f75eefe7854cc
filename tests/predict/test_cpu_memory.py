"""Simulated peaks of CPU memory against torch's own allocator events, and the rules one by one."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from detscope.predict.trace.network import trace_network
from detscope.sweep.measure import count_held_bytes, measure_allocated_peak
from detscope.zoo.networks import Network, load_network


def measured(network: Network, batch: int, optimizer: str) -> int:
    trained = [one for one in network.module.parameters() if one.requires_grad]
    update: torch.optim.Optimizer = torch.optim.Adam(trained, lr=1e-6)
    if optimizer == "sgd":
        update = torch.optim.SGD(trained, lr=1e-6, momentum=0.9, weight_decay=5e-4)
    data = network.random_batch(batch)

    def step() -> None:
        network.loss(data).backward()
        update.step()
        update.zero_grad(set_to_none=True)

    step()
    return count_held_bytes(network.module, update, data) + measure_allocated_peak(step)


@pytest.mark.parametrize(
    ("name", "image_size", "closer"),
    [
        ("resnet18", 64, 0.002),
        ("squeezenet1_1", 64, 0.002),
        ("mobilenet_v3_small", 64, 0.002),
        ("timm/resnet10t", 64, 0.002),
        ("tiny_fasterrcnn", None, 0.02),
        ("tiny_ssd", None, 0.02),
    ],
)
def test_the_peak_of_a_step_is_known_before_it_runs(name: str, image_size: int | None, closer: float) -> None:
    network = load_network(name, image_size=image_size)
    traced = trace_network(network)
    for optimizer, batch in (("sgd", 6), ("adam", 4)):
        found = traced.find_cpu_peak(batch, optimizer)
        assert found.allocated_bytes == pytest.approx(measured(network, batch, optimizer), rel=closer)
        assert sum(found.categories.values()) == found.allocated_bytes


def test_categories_are_what_they_say() -> None:
    network = load_network("squeezenet1_1", image_size=64)
    traced = trace_network(network)
    for optimizer, copies in (("sgd", 1), ("adam", 2)):
        found = traced.find_cpu_peak(8, optimizer).categories
        assert found["parameters"] == 4 * network.parameters
        state = 4 * copies * network.parameters
        assert state <= found["optimizer"] <= state * 1.001
        assert found["inputs"] == 8 * (3 * 64 * 64 * 4 + 8)
        assert found["activations"] > found["inputs"]
    small, large = (sum(traced.sum_activations(batch).values()) for batch in (16, 32))
    assert large == pytest.approx(2 * small, rel=0.001)


def test_cuda_reserves_more_than_it_allocates_and_both_grow_with_the_batch() -> None:
    traced = trace_network(load_network("resnet18", image_size=64))
    peaks = [traced.find_cuda_peak(batch) for batch in (1, 2, 8, 32)]
    assert all(peak.reserved >= peak.allocated for peak in peaks)
    assert [peak.allocated for peak in peaks] == sorted(peak.allocated for peak in peaks)
    assert traced.assumption_notes


def test_inference_keeps_nothing_for_backward() -> None:
    network = load_network("resnet18", image_size=64)
    training, inference = (trace_network(network, training=wanted) for wanted in (True, False))
    assert inference.find_cpu_peak(8, None).allocated_bytes < training.find_cpu_peak(8).allocated_bytes / 2
    assert inference.find_cpu_peak(8, None).categories["gradients"] == 0

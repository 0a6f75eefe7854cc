"""FLOPs by module: equal to torch's own counter for convolutions and products, by formula for the rest."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from detscope.record.counting import FLOPS_PER_OUTPUT, FLOPS_PER_PAIR, FLOPS_PER_SAMPLE, count_costs
from detscope.zoo.contract import BuildOptions
from detscope.zoo.registry import build_model

FAMILIES = ("tiny_fasterrcnn", "tiny_maskrcnn", "tiny_retinanet", "tiny_ssd", "tiny_efficientdet")


def batch() -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    torch.manual_seed(0)
    images = [torch.rand(3, 128, 160) for _ in range(2)]
    target = {
        "boxes": torch.tensor([[10.0, 10, 60, 60], [30, 40, 100, 100]]),
        "labels": torch.tensor([1, 2]),
        "masks": torch.ones(2, 128, 160, dtype=torch.uint8),
    }
    return images, [target, target]


def step_of(model: nn.Module) -> Any:
    images, targets = batch()

    def step() -> None:
        torch.manual_seed(1)  # detectors sample
        losses = model(images, targets)
        sum(losses.values()).backward()

    return step


def alone(module: nn.Module, shape: torch.Size, needs_gradient: bool) -> tuple[int, int]:
    """Forward and backward FLOPs of one layer by torch's counter, run by itself on an input of that shape."""
    given = torch.rand(shape, requires_grad=needs_gradient)
    counter = FlopCounterMode(display=False)
    with counter:
        out = module(given)
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    return forward, counter.get_total_flops()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_convolution_and_linear_layer_counts_as_torch_counts_it_forward_and_backward(name: str) -> None:
    built = build_model(name, BuildOptions(num_classes=6, weights="none", seed=0))
    model = built.module.train()
    layers = {
        path: module
        for path, module in model.named_modules()
        if type(module) in (nn.Conv2d, nn.Linear, nn.ConvTranspose2d)
    }
    calls: dict[str, list[tuple[torch.Size, bool]]] = defaultdict(list)
    hooks = [
        module.register_forward_pre_hook(
            lambda _m, args, path=path: calls[path].append((args[0].shape, args[0].requires_grad))
        )
        for path, module in layers.items()
    ]
    step_of(model)()
    for hook in hooks:
        hook.remove()
    found = {
        (cost.path, cost.direction): cost.self_flops
        for cost in count_costs(model, step_of(model), built.stages)
        if cost.kind == "module"
    }
    checked = 0
    for path, shapes in calls.items():
        expected = [alone(layers[path], shape, gradient) for shape, gradient in shapes if shape.numel()]
        assert found.get((path, "forward"), 0) == sum(forward for forward, _ in expected), path
        backward = found.get((path, "backward"), 0)
        assert backward in (0, sum(back for _, back in expected)), path  # 0: nothing of it reached the loss
        checked += backward > 0
    assert checked > len(layers) / 2


@pytest.mark.parametrize("name", FAMILIES)
def test_modules_add_up_to_what_torch_counts_in_all(name: str) -> None:
    built = build_model(name, BuildOptions(num_classes=6, weights="none", seed=0))
    model = built.module.train()
    costs = count_costs(model, step_of(model), built.stages)
    counter = FlopCounterMode(display=False)
    with counter:
        step_of(model)()
    own = sum(cost.self_flops for cost in costs)
    root = sum(cost.flops for cost in costs if cost.kind == "module" and cost.path == "")
    assert own == root
    extra = own - counter.get_total_flops()  # RoIAlign and NMS, which torch does not count
    assert extra >= 0
    if name in ("tiny_ssd", "tiny_retinanet", "tiny_efficientdet"):
        assert extra == 0  # training of a single-stage model pools no region and suppresses nothing


def test_roi_align_and_nms_count_by_their_formula() -> None:
    from torchvision.ops import nms, roi_align

    class Pool(nn.Module):
        def forward(self, features: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
            nms(boxes[:, 1:], torch.rand(5), 0.5)
            return roi_align(features, boxes, (7, 7), sampling_ratio=2)

    boxes = torch.cat([torch.zeros(5, 1), torch.rand(5, 2) * 10, torch.rand(5, 2) * 10 + 12], dim=1)
    features = torch.rand(1, 16, 32, 32, requires_grad=True)
    model = Pool()
    costs = count_costs(model, lambda: model(features, boxes).sum().backward(), ())
    found = {cost.direction: cost.self_flops for cost in costs}
    outputs = 5 * 16 * 7 * 7
    pooled = outputs * (FLOPS_PER_SAMPLE * 2 * 2 + FLOPS_PER_OUTPUT)
    assert found["forward"] == pooled + FLOPS_PER_PAIR * 10  # 5 boxes make 10 pairs
    assert found["backward"] == pooled


def test_bytes_are_what_operators_read_and_write_and_views_are_free() -> None:
    class Add(nn.Module):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return given.view(10, 10).t() + 1.0

    model = Add()
    with torch.no_grad():
        costs = count_costs(model, lambda: model(torch.rand(100)), ())
    assert [(cost.direction, cost.self_bytes) for cost in costs] == [("forward", 800)]


def test_counting_leaves_nothing_on_the_model() -> None:
    built = build_model("tiny_ssd", BuildOptions(num_classes=6, weights="none", seed=0))
    model = built.module.train()
    before = {path: set(vars(module)) for path, module in model.named_modules()}
    forwards = {type(module): type(module).forward for module in model.modules()}
    count_costs(model, step_of(model), built.stages)
    assert {path: set(vars(module)) for path, module in model.named_modules()} == before
    assert all(kind.forward is forward for kind, forward in forwards.items())

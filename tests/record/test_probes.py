"""Probes: what they see, and that they leave nothing behind."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from detscope.record.events import EventBuffer
from detscope.record.nodes import NodeTable
from detscope.record.probes import (
    Attachments,
    BorderScribe,
    CallProbe,
    resolve_target,
    select_modules,
    tensors_in,
)
from detscope.record.replay import replay


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Linear(4, 4)

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.second.weight.sum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.relu(self.first(x))
        return self.scale(self.second(hidden) + x)


def probed(model: nn.Module) -> tuple[NodeTable, EventBuffer, Attachments]:
    nodes, buffer = NodeTable(), EventBuffer()
    scribe, attachments = BorderScribe(buffer), Attachments()
    for path, module in model.named_modules():
        attachments.module(module, *scribe.pair(nodes.add("module", path).number))
    return nodes, buffer, attachments


def backward_order(nodes: NodeTable, buffer: EventBuffer) -> list[str]:
    items = buffer.items
    return [nodes[items[i] >> 2].path for i in range(0, len(items), 3) if items[i] & 3 == 2]


def test_the_engine_reaches_modules_in_reverse_and_own_operations_go_to_the_parent():
    model = Block()
    nodes, buffer, attachments = probed(model)
    model(torch.rand(2, 4)).sum().backward()
    attachments.remove()
    assert backward_order(nodes, buffer) == ["", "second", "relu", "first"]


def test_a_probe_changes_neither_outputs_nor_gradients():
    torch.manual_seed(0)
    model, x = Block(), torch.rand(3, 4)
    plain = model(x)
    plain.sum().backward()
    plain_grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    _, _, attachments = probed(model)
    recorded = model(x)
    recorded.sum().backward()
    attachments.remove()
    assert torch.equal(plain, recorded)
    assert all(torch.equal(a, p.grad) for a, p in zip(plain_grads, model.parameters(), strict=True))


def state_of(model: nn.Module) -> list[dict[str, object]]:
    return [
        {
            **vars(module),
            "_forward_hooks": dict(module._forward_hooks),
            "hooks": dict(module._forward_pre_hooks),
        }
        for module in model.modules()
    ]


def test_after_removal_the_model_is_as_it_was():
    model = Block()
    before = state_of(model)
    nodes, buffer, attachments = probed(model)
    scribe = BorderScribe(buffer)
    attachments.method(model, "scale", *scribe.pair(nodes.add("method", "scale()").number))
    assert isinstance(vars(model)["scale"], CallProbe)
    attachments.remove()
    assert state_of(model) == before
    assert len(attachments) == 0


def test_a_method_that_was_already_replaced_on_the_instance_is_put_back():
    model = Block()

    def patched(x: torch.Tensor) -> torch.Tensor:
        return x

    model.scale = patched
    _, _, attachments = probed(model)
    attachments.method(model, "scale", lambda *_: None, lambda *_: None)
    attachments.remove()
    assert model.scale is patched


def test_a_copy_made_while_recording_uses_its_own_method():
    model = Block()
    attachments = Attachments()
    attachments.method(model, "scale", lambda *_: None, lambda *_: None)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.second.weight.fill_(1.0)
        model.second.weight.fill_(0.0)
    assert twin.scale(torch.ones(1)).item() == 16.0
    attachments.remove()


def test_an_exception_inside_a_module_passes_and_every_begin_has_its_end():
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner(x)
            raise ValueError("mine")

    model = Failing()
    nodes, buffer, attachments = probed(model)
    with pytest.raises(ValueError, match="mine"):
        model(torch.rand(1, 2))
    attachments.remove()
    codes = buffer.items[::3]
    assert [code & 3 for code in codes] == [0, 0, 1, 1]
    account = replay(buffer.items, nodes, 0, buffer.items[-2])
    assert account.problems == []


def test_nested_outputs_of_detectors_are_followed():
    class Holder:
        tensors = torch.ones(1)

    nested = {"a": [torch.ones(1), (torch.ones(1), {"b": torch.ones(1)})], "c": Holder(), "d": "text"}
    assert len(list(tensors_in(nested))) == 4


def test_modules_are_chosen_by_kind_or_depth_and_the_root_is_always_there():
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1)), nn.ReLU())
    assert [path for path, _ in select_modules(model, "all")] == ["", "0", "0.0", "1"]
    assert [path for path, _ in select_modules(model, "leaf")] == ["", "0.0", "1"]
    assert [path for path, _ in select_modules(model, "1")] == ["", "0", "1"]
    assert [path for path, _ in select_modules(model, "none")] == [""]


def test_targets_name_modules_methods_and_functions():
    model = Block()
    assert resolve_target(model, "first")[0] == "module"
    assert resolve_target(model, "scale()") == ("method", model, "scale")
    assert resolve_target(model, "torch.nn.functional:relu")[2] == "relu"
    with pytest.raises(AttributeError):
        resolve_target(model, "no.such")

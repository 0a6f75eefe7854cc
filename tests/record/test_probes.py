"""Probes: what they see, and that they leave nothing behind."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from detscope.record.borders import BorderScribe, tensors_in
from detscope.record.events import EventBuffer
from detscope.record.nodes import NodeTable
from detscope.record.probes import Attachments, CallProbe, resolve_target, select_modules
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


def probed(model: nn.Module, hooks: bool = False) -> tuple[NodeTable, EventBuffer, Attachments]:
    nodes, buffer = NodeTable(), EventBuffer()
    scribe, attachments = BorderScribe(buffer), Attachments()
    targets = [(module, nodes.add("module", path).number) for path, module in model.named_modules()]
    if hooks:
        for module, number in targets:
            attachments.module(module, *scribe.pair(number))
    else:
        attachments.modules(targets, scribe)
    return nodes, buffer, attachments


def backward_order(nodes: NodeTable, buffer: EventBuffer) -> list[str]:
    items = buffer.items
    return [nodes[items[i] >> 2].path for i in range(0, len(items), 3) if items[i] & 3 == 2]


BOTH_WAYS = pytest.mark.parametrize("hooks", [False, True], ids=["class", "hooks"])


@BOTH_WAYS
def test_the_engine_reaches_modules_in_reverse_and_own_operations_go_to_the_parent(hooks):
    model = Block()
    nodes, buffer, attachments = probed(model, hooks)
    model(torch.rand(2, 4)).sum().backward()
    attachments.remove()
    assert backward_order(nodes, buffer) == ["", "second", "relu", "first"]


@BOTH_WAYS
def test_a_probe_changes_neither_outputs_nor_gradients(hooks):
    torch.manual_seed(0)
    model, x = Block(), torch.rand(3, 4)
    plain = model(x)
    plain.sum().backward()
    plain_grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    _, _, attachments = probed(model, hooks)
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


CLASSES = (Block, nn.Linear, nn.ReLU, nn.Module)


@BOTH_WAYS
def test_after_removal_the_model_and_its_classes_are_as_they_were(hooks):
    model = Block()
    before = state_of(model)
    classes = [dict(vars(owner)) for owner in CLASSES]
    nodes, buffer, attachments = probed(model, hooks)
    scribe = BorderScribe(buffer)
    attachments.method(model, "scale", *scribe.pair(nodes.add("method", "scale()").number))
    assert isinstance(vars(model)["scale"], CallProbe)
    attachments.remove()
    assert state_of(model) == before
    assert [dict(vars(owner)) for owner in CLASSES] == classes
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


def test_copies_and_strangers_of_the_same_class_run_as_always_and_are_not_recorded():
    model, stranger = Block(), Block()
    _, buffer, attachments = probed(model)
    twin = copy.deepcopy(model)
    buffer.take()
    stranger(torch.rand(1, 4))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert twin(torch.rand(1, 4)).abs().sum() == 0
    assert buffer.items == []
    attachments.remove()


def test_a_class_that_calls_its_parents_forward_is_one_span():
    class Louder(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    model = nn.Sequential(Louder(4, 4), nn.Linear(4, 4))
    nodes, buffer, attachments = probed(model)
    model(torch.rand(1, 4))
    attachments.remove()
    paths = [nodes[code >> 2].path for code in buffer.items[::3] if code & 3 == 0]
    assert paths == ["", "0", "1"]


def test_a_forward_on_the_instance_is_recorded_by_hooks_and_stays():
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].forward = lambda x: x + 1
    mine = model[0].forward
    nodes, buffer, attachments = probed(model)
    assert model(torch.zeros(1, 4)).sum() == 4
    attachments.remove()
    assert [nodes[code >> 2].path for code in buffer.items[::3] if code & 3 == 0] == ["", "0"]
    assert model[0].forward is mine


def test_a_class_patched_by_others_while_recording_keeps_their_patch():
    class Mine(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    model = Mine()
    _, _, attachments = probed(model)

    def theirs(self: Mine, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    Mine.forward = theirs
    attachments.remove()
    assert Mine.forward is theirs


@BOTH_WAYS
def test_an_exception_inside_a_module_passes_and_every_begin_has_its_end(hooks):
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner(x)
            raise ValueError("mine")

    model = Failing()
    nodes, buffer, attachments = probed(model, hooks)
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

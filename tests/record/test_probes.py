"""Probes: what they see, and that they leave nothing behind."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from detscope.record.model.borders import BorderWriter, tensors_in
from detscope.record.model.probes import ModelProbes, resolve_target, select_modules
from detscope.record.steps.events import EventBuffer
from detscope.record.steps.nodes import NodeTable
from detscope.record.steps.replay import replay_events
from detscope.zoo.contract import Stage


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


def probed(model: nn.Module, *targets: str) -> tuple[NodeTable, EventBuffer, ModelProbes]:
    nodes, buffer = NodeTable(), EventBuffer()
    stages = [Stage(target, target) for target in targets]
    ignore = (lambda *_: None, lambda *_: None)
    probes = ModelProbes(model, nodes, BorderWriter(buffer), "all", stages, (), *ignore)
    probes.attach_modules(modules=True)
    return nodes, buffer, probes


def entered(nodes: NodeTable, buffer: EventBuffer) -> list[str]:
    return [nodes[code >> 2].path for code in buffer.items[::3] if code & 3 == 0]


def backward_order(nodes: NodeTable, buffer: EventBuffer) -> list[str]:
    items = buffer.items
    return [nodes[items[i] >> 2].path for i in range(0, len(items), 3) if items[i] & 3 == 2]


def test_the_engine_reaches_modules_in_reverse_and_own_operations_go_to_the_parent():
    model = Block()
    nodes, buffer, probes = probed(model)
    model(torch.rand(2, 4)).sum().backward()
    probes.remove_all()
    assert backward_order(nodes, buffer) == ["", "second", "relu", "first"]


def test_a_probe_changes_neither_outputs_nor_gradients():
    torch.manual_seed(0)
    model, x = Block(), torch.rand(3, 4)
    plain = model(x)
    plain.sum().backward()
    plain_grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    _, _, probes = probed(model, "scale()", "torch.nn.functional:linear")
    recorded = model(x)
    recorded.sum().backward()
    probes.remove_all()
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


def test_while_recording_the_model_is_as_it_was_and_after_removal_its_classes_too():
    model = Block()
    before, scale, linear = state_of(model), Block.scale, nn.functional.linear
    classes = [dict(vars(owner)) for owner in CLASSES]
    nodes, buffer, probes = probed(model, "scale()", "torch.nn.functional:linear")
    assert state_of(model) == before
    assert model.scale.__func__ is Block.scale is scale
    assert nn.functional.linear is linear
    model(torch.rand(2, 4))
    assert entered(nodes, buffer) == [
        "",
        *("first", "linear()", "relu"),
        *("second", "linear()", "scale()"),
    ]
    assert state_of(model) == before
    assert model.scale.__func__ is Block.scale is scale
    assert nn.functional.linear is linear
    probes.remove_all()
    assert [dict(vars(owner)) for owner in CLASSES] == classes


def test_a_method_that_was_put_on_the_instance_is_recorded_and_stays():
    model = Block()

    def patched(x: torch.Tensor) -> torch.Tensor:
        return x

    model.scale = patched
    nodes, buffer, probes = probed(model, "scale()")
    model(torch.rand(2, 4))
    assert model.scale is patched
    probes.remove_all()
    assert model.scale is patched
    assert entered(nodes, buffer)[-1] == "scale()"


def test_static_and_class_methods_are_recorded_and_stay():
    class Helped(nn.Module):
        @staticmethod
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @classmethod
        def halve(cls, x: torch.Tensor) -> torch.Tensor:
            return x / len(cls.__name__)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.halve(self.double(x))

    model = Helped()
    before = dict(vars(Helped))
    nodes, buffer, probes = probed(model, "double()", "halve()")
    assert model(torch.ones(1)).item() == pytest.approx(2 / 6)
    probes.remove_all()
    assert entered(nodes, buffer) == ["", "double()", "halve()"]
    assert dict(vars(Helped)) == before


def test_a_copy_made_while_recording_uses_its_own_method():
    model = Block()
    _, buffer, probes = probed(model, "scale()")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.second.weight.fill_(1.0)
        model.second.weight.fill_(0.0)
    assert twin.scale(torch.ones(1)).item() == 16.0
    twin(torch.rand(1, 4))
    assert buffer.items == []
    probes.remove_all()


def test_copies_and_strangers_of_the_same_class_run_as_always_and_are_not_recorded():
    model, stranger = Block(), Block()
    _, buffer, probes = probed(model)
    twin = copy.deepcopy(model)
    stranger(torch.rand(1, 4))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert twin(torch.rand(1, 4)).abs().sum() == 0
    assert buffer.items == []
    probes.remove_all()


def test_a_part_that_is_called_without_its_model_is_recorded():
    model = Block()
    nodes, buffer, probes = probed(model)
    model.second(torch.rand(1, 4))
    probes.remove_all()
    assert entered(nodes, buffer) == ["second"]


def test_a_class_that_calls_its_parents_forward_is_one_span():
    class Louder(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    model = nn.Sequential(Louder(4, 4), nn.Linear(4, 4))
    nodes, buffer, probes = probed(model)
    model(torch.rand(1, 4))
    probes.remove_all()
    assert entered(nodes, buffer) == ["", "0", "1"]


def test_a_forward_on_the_instance_is_recorded_and_stays():
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].forward = lambda x: x + 1
    mine = model[0].forward
    nodes, buffer, probes = probed(model)
    assert model(torch.zeros(1, 4)).sum() == 4
    probes.remove_all()
    assert entered(nodes, buffer) == ["", "0"]
    assert model[0].forward is mine


def test_a_call_and_a_method_patched_by_others_while_recording_stay_theirs():
    model, plain_call, plain_scale = Block(), nn.Module.__call__, Block.scale
    _, _, probes = probed(model, "scale()")
    door = nn.Module.__call__

    def their_call(self: nn.Module, *args: object, **kwargs: object) -> object:
        return door(self, *args, **kwargs)

    def their_scale(self: Block, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    nn.Module.__call__, Block.scale = their_call, their_scale
    try:
        probes.remove_all()
        assert nn.Module.__call__ is their_call
        assert Block.scale is their_scale
        assert model(torch.rand(1, 4)).shape == (1, 4)
    finally:
        nn.Module.__call__, Block.scale = plain_call, plain_scale


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_two_recordings_at_once_end_in_any_order(first_ends_first):
    model, plain, scale = Block(), nn.Module.__call__, vars(Block)["scale"]
    nodes, first_buffer, first = probed(model, "scale()")
    _, second_buffer, second = probed(model, "scale()")
    model(torch.rand(1, 4))
    assert entered(nodes, first_buffer) == entered(nodes, second_buffer)
    assert entered(nodes, first_buffer)[-1] == "scale()"
    for probes in (first, second) if first_ends_first else (second, first):
        probes.remove_all()
    assert nn.Module.__call__ is plain
    assert vars(Block)["scale"] is scale


def test_calls_in_another_thread_run_plain_while_one_is_recorded():
    class Waiting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if inside.is_set():
                return x + 1
            inside.set()
            assert go_on.wait(900)
            return x

    model = nn.Sequential(Waiting(), nn.ReLU())
    inside, go_on, results = threading.Event(), threading.Event(), []
    nodes, buffer, probes = probed(model)
    one = threading.Thread(target=lambda: results.append(model(torch.zeros(1))))
    one.start()
    assert inside.wait(900)
    assert model(torch.zeros(1)).item() == 1
    go_on.set()
    one.join(900)
    probes.remove_all()
    assert entered(nodes, buffer) == ["", "0", "1"]
    assert results[0].item() == 0


def test_a_module_that_is_dropped_dies_and_its_place_is_not_taken_for_it():
    model = Block()
    _, buffer, probes = probed(model, "scale()")
    model(torch.rand(1, 4))
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None
    buffer.take_events()
    for _ in range(50):  # some of them lie where the old one lay
        Block()(torch.rand(1, 4))
    assert buffer.items == []
    probes.remove_all()


def test_an_exception_inside_a_module_passes_and_every_begin_has_its_end():
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner(x)
            raise ValueError("mine")

    model, linear = Failing(), nn.functional.linear
    nodes, buffer, probes = probed(model, "torch.nn.functional:linear")
    with pytest.raises(ValueError, match="mine"):
        model(torch.rand(1, 2))
    assert nn.functional.linear is linear
    buffer.take_events()
    model.inner(torch.rand(1, 2))
    assert entered(nodes, buffer) == ["inner", "linear()"]
    probes.remove_all()
    account = replay_events(buffer.items, nodes, 0, buffer.items[-2])
    assert account.problems == []


def test_an_object_that_answers_to_every_name_is_not_asked():
    class Answering:
        def __getattr__(self, name: str) -> torch.Tensor:
            raise AssertionError(name)

    assert list(tensors_in([Answering(), torch.ones(1)])) == [torch.ones(1)]


def test_nested_outputs_of_detectors_are_followed():
    class Holder:
        def __init__(self) -> None:
            self.tensors = torch.ones(1)

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

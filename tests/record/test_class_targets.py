"""Stages that hang on no model: methods of any object of a class, functions under somebody else's name."""

from __future__ import annotations

import inspect
import pickle
import sys
import threading
from types import ModuleType

import pytest
import torch
from torch import nn

from detscope.record.model.borders import BorderWriter
from detscope.record.model.probes import ModelProbes
from detscope.record.steps.events import EventBuffer
from detscope.record.steps.nodes import NodeTable
from detscope.zoo.contract import Stage
from detscope.zoo.family import has_target

HERE = __name__


def assign_pairs(costs: torch.Tensor) -> torch.Tensor:
    return costs.argmin(1)


class Matcher(nn.Module):
    def forward(self, costs: torch.Tensor) -> torch.Tensor:
        return sys.modules["somebody_elses"].assign_pairs(costs)


class StrictMatcher(Matcher):
    pass


class Average:
    """Of weights; no module, and on no model."""

    def __init__(self) -> None:
        self.updates = 0

    def update(self, model: nn.Module) -> int:
        self.updates += 1
        return self.updates

    @staticmethod
    def decay(step: int) -> int:
        return step

    def __call__(self) -> str:
        return "called"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        costs = self.layer(x)
        StrictMatcher()(costs)
        return costs


@pytest.fixture(autouse=True)
def _somebody_elses_module(monkeypatch):
    theirs = ModuleType("somebody_elses")
    theirs.assign_pairs = assign_pairs
    monkeypatch.setitem(sys.modules, "somebody_elses", theirs)


class Recording:
    def __init__(self, model: nn.Module, **stages: str) -> None:
        self.nodes, self.buffer = NodeTable(), EventBuffer()
        named = [Stage(name, f"{HERE}:{path}") for name, path in stages.items()]
        ignore = (lambda *_: None, lambda *_: None)
        borders = BorderWriter(self.buffer)
        self.probes = ModelProbes(model, self.nodes, borders, "all", named, (), *ignore)
        self.probes.attach_modules(modules=True)

    def take_entered(self) -> list[str]:
        heard = self.buffer.take_events().items
        return [self.nodes[code >> 2].path for code in heard[::3] if code & 3 == 0]


def test_a_method_of_any_object_of_a_class_is_heard_inside_the_model_and_outside_of_it():
    model, average = Net(), Average()
    recording = Recording(model, matcher="Matcher.forward", ema="Average.update")
    model(torch.rand(2, 4))
    assert recording.take_entered() == ["", "layer", "Matcher.forward()"]
    assert average.update(model) == 1
    assert recording.take_entered() == ["Average.update()"]
    recording.probes.detach_modules()
    average.update(model)
    assert recording.take_entered() == []
    recording.probes.remove_all()
    assert inspect.isfunction(vars(Average)["update"])
    assert inspect.isfunction(vars(Matcher)["forward"])


def test_a_function_is_heard_under_the_name_by_which_somebody_else_calls_it_and_put_back():
    model = Net()
    recording = Recording(model, assignment="assign_pairs")
    model(torch.rand(2, 4))
    assert recording.take_entered() == ["", "layer", "assign_pairs()"]
    assert sys.modules["somebody_elses"].assign_pairs is assign_pairs
    recording.probes.remove_all()


def test_functions_are_heard_inside_of_a_method_that_no_model_calls():
    model = Net()
    recording = Recording(model, matcher="Matcher.forward", assignment="assign_pairs")
    model(torch.rand(2, 4))
    recording.take_entered()
    Matcher().forward(torch.rand(2, 2))
    assert recording.take_entered() == ["Matcher.forward()", "assign_pairs()"]
    assert sys.modules["somebody_elses"].assign_pairs is assign_pairs
    recording.probes.remove_all()


def test_special_and_static_methods_of_a_class_are_heard():
    model, average = Net(), Average()
    recording = Recording(model, called="Average.__call__", decay="Average.decay")
    model(torch.rand(2, 4))
    recording.take_entered()
    assert (average(), average.decay(3), Average.decay(4)) == ("called", 3, 4)
    assert recording.take_entered() == ["Average.__call__()", "Average.decay()", "Average.decay()"]
    recording.probes.remove_all()
    assert isinstance(vars(Average)["decay"], staticmethod)


def test_other_threads_pickles_and_signatures_do_not_notice():
    model, average = Net(), Average()
    recording = Recording(model, ema="Average.update")
    model(torch.rand(2, 4))
    recording.take_entered()
    thread = threading.Thread(target=average.update, args=(model,))
    thread.start()
    thread.join()
    assert recording.take_entered() == []
    assert pickle.loads(pickle.dumps(average)).updates == 1
    assert pickle.loads(pickle.dumps(Average.update)) is Average.update
    assert list(inspect.signature(average.update).parameters) == ["model"]
    recording.probes.remove_all()


def test_two_libraries_with_one_name_are_two_stages():
    theirs = sys.modules["somebody_elses"]
    theirs.Average = type("Average", (), {"update": lambda self: "theirs"})
    model = Net()
    nodes, buffer = NodeTable(), EventBuffer()
    stages = [Stage("ema", f"{HERE}:Average.update"), Stage("other_ema", "somebody_elses:Average.update")]
    ModelProbes(
        model, nodes, BorderWriter(buffer), "all", stages, (), lambda *_: None, lambda *_: None
    ).remove_all()
    found = {node.path: node.stage for node in nodes if node.kind == "method"}
    assert found == {"Average.update()": "ema", "somebody_elses:Average.update()": "other_ema"}


def test_a_library_that_is_not_loaded_is_not_imported():
    assert has_target(Net(), f"{HERE}:Average.update")
    assert not has_target(Net(), f"{HERE}:Average.no_such")
    assert not has_target(Net(), "xdrlib_of_nobody:Thing.method")
    assert "antigravity" not in sys.modules
    assert not has_target(Net(), "antigravity:geohash")
    assert "antigravity" not in sys.modules

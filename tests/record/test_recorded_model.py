"""A recorded model is the user's model: whatever is asked of it in the middle of a step is as without us."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import re
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import detscope


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.head(self.features(x).mean((2, 3))) * scale


Look = Callable[[nn.Module], Any]


def in_every_step(look: Look, steps: int = 16) -> Callable[[nn.Module, Iterator[Any]], list[Any]]:
    """A loop that looks at its model between forward and backward, and what it saw."""

    def loop(model: nn.Module, batches: Iterator[Any]) -> list[Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        seen = []
        for batch in batches:
            loss = model(batch, scale=2.0).square().mean()
            seen.append(look(model))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert len(seen) == steps
        return seen

    return loop


def batches(steps: int = 16) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.rand(2, 3, 12, 12) for _ in range(steps)]


def both_ways(look: Look, folder: Path) -> tuple[list[Any], list[Any]]:
    """What a loop sees without us, and in a recorder through all kinds of steps."""
    torch.manual_seed(0)
    model = Net()
    twin = copy.deepcopy(model)
    loop = in_every_step(look)
    plain = loop(twin, iter(batches()))
    recorder = detscope.Recorder(
        model, out=folder, level="ops", ops_steps=2, memory=True, memory_steps=2, telemetry_hz=0
    )
    with recorder:
        recorded = loop(model, recorder.steps(batches()))
    return plain, recorded


def shape_of(model: nn.Module) -> Any:
    hooks = [
        (len(part._forward_hooks), len(part._forward_pre_hooks), len(part._backward_hooks))
        for part in model.modules()
    ]
    return [sorted(vars(part)) for part in model.modules()], hooks


LOOKS: dict[str, Look] = {
    "its class": lambda model: (type(model), model.__class__, [type(part) for part in model.modules()]),
    "its signature": lambda model: (inspect.signature(model.forward), inspect.signature(Net.forward)),
    "its source": lambda model: (inspect.getsource(type(model)), inspect.getsource(nn.Module.forward)),
    "its bound method": lambda model: (model.forward.__func__ is Net.forward, repr(model)),
    "functools": lambda model: functools.partial(model.forward, scale=3.0).func.__func__ is Net.forward,
    "weak references": lambda model: (weakref.ref(model)() is model, len(weakref.WeakSet(model.modules()))),
    "its attributes": shape_of,
    "a copy's": lambda model: shape_of(copy.deepcopy(model)),
    "what is pickled": lambda model: b"detscope" in pickle.dumps(model),
    "its state": lambda model: [
        (name, value.sum().item()) for name, value in copy.deepcopy(model).state_dict().items()
    ],
    "a round trip": lambda model: str(Net().load_state_dict(model.state_dict())),
}


@pytest.mark.parametrize("what", LOOKS)
def test_what_is_asked_of_a_model_in_any_step_is_answered_as_without_us(what, tmp_path):
    plain, recorded = both_ways(LOOKS[what], tmp_path)
    assert recorded == plain


def graph_of(module: nn.Module) -> str:
    """What an exporter sees: it calls a module of its own, which then begins to trace."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        graph = torch.jit._get_trace_graph(module, torch.ones(1, 3, 12, 12))[0]
    return re.sub(r" # .*", "", str(graph))


def test_a_program_that_is_traced_in_any_step_of_a_script_holds_nothing_of_ours(listen):
    torch.manual_seed(0)
    model = Net()
    loop, plain = in_every_step(graph_of), graph_of(model)
    with listen(level="ops", memory=True):
        assert set(loop(model, iter(batches()))) == {plain}


class TracesInside(nn.Module):
    """Traces its own part when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.graphs: list[str] = []

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.graphs.append(graph_of(self.net))
        return self.net(x, scale=scale)


def test_what_a_model_traces_in_its_own_forward_holds_nothing_of_ours(listen):
    torch.manual_seed(0)
    model = TracesInside()
    plain = graph_of(model.net)
    with listen(level="ops", memory=True):
        in_every_step(lambda _: None)(model, iter(batches()))
    assert set(model.graphs) == {plain}


def test_modules_and_hooks_of_ones_own_come_and_go_as_without_us(tmp_path):
    def change(model: nn.Module) -> Any:
        heard: list[str] = []
        added = model.register_forward_hook(lambda *_: heard.append("after"))
        before = model.head.register_forward_pre_hook(lambda *_: heard.append("before"))
        model.add_module("extra", nn.Linear(2, 2))
        with torch.no_grad():
            answer = model.extra(model(torch.ones(1, 3, 12, 12)))
        added.remove()
        before.remove()
        del model.extra
        with torch.no_grad():
            model(torch.ones(1, 3, 12, 12))
        return heard, tuple(answer.shape), shape_of(model)

    plain, recorded = both_ways(change, tmp_path)
    assert recorded == plain


@pytest.mark.parametrize("what", ["its attributes", "a copy's", "its bound method", "what is pickled"])
def test_a_scripts_model_is_its_own_too(what, listen):
    model = Net()
    loop = in_every_step(LOOKS[what])
    plain = loop(copy.deepcopy(model), iter(batches()))
    seen: list[Any] = []
    with listen(level="ops", memory=True):
        seen.extend(loop(model, iter(batches())))
    assert seen == plain

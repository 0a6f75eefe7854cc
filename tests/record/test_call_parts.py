"""Stages that are no call of their own: what a call does itself before, between and after calls inside."""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import pytest
import torch
from torch import nn

from detscope.record.model.borders import BorderWriter
from detscope.record.model.calls import CallListener
from detscope.record.model.probes import ModelProbes
from detscope.record.steps.events import EventBuffer
from detscope.record.steps.nodes import NodeTable
from detscope.record.steps.replay import StepAccount, replay_codes
from detscope.zoo.contract import BEGIN, Stage

HERE = __name__


def square_costs(costs: torch.Tensor) -> torch.Tensor:
    return costs * costs


class Criterion(nn.Module):
    def forward(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        losses = []
        for output in outputs:
            square_costs(output)
            losses.append(self.get_loss(output))
        return sum(losses)

    def get_loss(self, output: torch.Tensor) -> torch.Tensor:
        return output.sin().sum()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = []
        for layer in self.layers:
            x = layer(x).relu()
            outputs.append(x)
        if self.fails:
            raise ValueError("it fails")
        return Criterion()(outputs)


STAGES = (
    Stage("before", "", BEGIN),
    Stage("first", "layers.0"),
    Stage("between", "", "layers.0"),
    Stage("late", "", "layers.2"),
    Stage("loss", f"{HERE}:Criterion.forward"),
    Stage("loss.main", f"{HERE}:Criterion.forward", f"{HERE}:square_costs"),
    Stage("loss.others", f"{HERE}:Criterion.forward", f"{HERE}:square_costs"),
    Stage("", f"{HERE}:Criterion.get_loss"),
)


class Recorded:
    def __init__(self, model: nn.Module, stages: Sequence[Stage] = STAGES) -> None:
        self.model = model
        self.nodes, self.buffer, self._listener = NodeTable(), EventBuffer(), CallListener()
        self.borders = BorderWriter(self.buffer)
        ignore = (lambda *_: None, lambda *_: None)
        about = (self.nodes, self.borders, "all", stages, ())
        self.probes = ModelProbes(model, *about, *ignore, self._listener)

    def __enter__(self) -> Recorded:
        self.probes.attach_modules(True)
        self._listener.calls.owner = get_ident()
        return self

    def __exit__(self, *_: Any) -> None:
        self.probes.remove_all()

    def account(self) -> StepAccount:
        return replay_codes(self.buffer.items[::3], self.nodes)[0]

    def list_stages(self) -> list[str]:
        """In the order of time, without repetitions of neighbours."""
        stages = [piece.stage for piece in self.account().slices if piece.stage]
        return [name for index, name in enumerate(stages) if not index or name != stages[index - 1]]


def test_a_call_is_cut_where_calls_inside_of_it_begin_and_end() -> None:
    with Recorded(Net()) as recorded, torch.no_grad():
        recorded.model(torch.rand(2, 4))
    assert recorded.list_stages() == [
        *("before", "first", "between", "late", "loss", "loss.main"),
        *("loss", "loss.others", "loss", "loss.others", "loss", "late"),
    ]
    assert recorded.account().problems == []


def test_parts_of_a_call_that_fails_end_with_it() -> None:
    model = Net()
    model.fails = True
    with Recorded(model) as recorded:
        for _ in range(2):
            with pytest.raises(ValueError, match="it fails"):
                model(torch.rand(2, 4))
        model.fails = False
        model(torch.rand(2, 4))
    assert recorded.account().problems == []
    assert recorded.borders._owners == []


def test_backward_finds_the_part_that_made_its_nodes() -> None:
    with Recorded(Net()) as recorded:
        loss = recorded.model(torch.rand(2, 4))
        begin = len(recorded.buffer.items)
        loss.backward()
    reached = [recorded.nodes[code >> 2].path for code in recorded.buffer.items[begin::3]]
    assert reached[0] == "Criterion.forward (loss.others)"
    assert "Criterion.forward (loss.main)" in reached
    assert " (between)" in reached


def test_a_function_that_cuts_is_left_alone_where_nothing_is_cut_by_it() -> None:
    class Other(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return square_costs(x)

    with Recorded(Other(), STAGES[4:]) as recorded:
        recorded.model(torch.rand(2))
    assert recorded.list_stages() == []
    assert "square_costs" not in {node.path for node in recorded.nodes}

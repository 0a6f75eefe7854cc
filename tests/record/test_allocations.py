"""Memory of a pass: sizes that are known beforehand, found where they were made."""

from __future__ import annotations

import torch
from torch import nn

from detscope.record.memory.allocations import measure_allocations
from detscope.zoo.contract import Stage

BYTES = 1000 * 256 * 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 256)
        self.act = nn.ReLU()
        self.narrow = nn.Linear(256, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(self.act(self.wide(x)))


STAGES = (Stage("body", "wide"), Stage("body.act", "act"), Stage("head", "narrow"))


def measured(passes: int = 3) -> dict:
    model, x = Net(), torch.rand(1000, 8)

    def one_pass() -> None:
        with torch.inference_mode():
            model(x)

    return measure_allocations(model, [one_pass] * passes, STAGES)


def test_the_largest_allocations_have_their_size_operator_module_and_stage():
    largest = measured()["largest"][:2]
    assert [item["bytes"] for item in largest] == [BYTES, BYTES]
    assert {(item["module"], item["operator"], item["stage"]) for item in largest} == {
        ("wide", "aten::linear", "body"),
        ("act", "aten::relu", "body.act"),
    }


def test_the_peak_is_what_lives_at_the_same_time_and_everything_is_freed():
    found = measured()
    assert found["passes"] == 3
    assert 2 * BYTES <= found["peak_bytes"] < 2.2 * BYTES
    assert found["peak_at"]["module"] == "act"
    assert found["allocated_bytes"] == found["freed_bytes"]
    assert found["allocated_bytes"] < 2.2 * BYTES, "per pass, not for all of them"


def test_stages_hold_their_parts_and_modules_only_their_own():
    found = measured()
    stages = {row["name"]: row for row in found["stages"]}
    assert 2 * BYTES <= stages["body"]["allocated_bytes"] < 2.2 * BYTES
    assert stages["body.act"]["allocated_bytes"] == BYTES
    modules = {row["path"]: row for row in found["modules"]}
    assert modules["act"]["allocated_bytes"] == BYTES
    assert modules["narrow"]["allocated_bytes"] < BYTES


def test_without_a_pass_there_is_no_figure_but_a_reason():
    found = measured(0)
    assert found["peak_bytes"] is None
    assert found["why"]

"""A script of one's own under `detscope run`: its loss, its average and its logging have names and lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from named_rows import by_name

SCRIPT = """
import copy
import time

import torch
from torch import nn
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 1))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Average:
    def __init__(self, model):
        self.model = copy.deepcopy(model)

    def update(self, model):
        time.sleep(0.01)


def criterion(output):
    time.sleep(0.01)
    return output.square().mean()


def print_step():
    time.sleep(0.03)


model = Net()
average = Average(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader([torch.randn(8) for _ in range(160)], batch_size=4):
    loss = criterion(model(batch))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    average.update(model)
    print_step()
torch.save(model, "model.pt")
"""


def test_planted_sleeps_are_told_by_name_with_the_line_that_calls(tmp_path: Path, torch_server) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ("run", "-q", "--json", "figures.json", "train.py")
    done = torch_server(*command, folder=tmp_path, teardown=True, working=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "figures.json").read_text())
    stages = by_name(summary["stages"], "total_ms", 0)
    assert stages["loss"] == pytest.approx(10, abs=2)
    assert set(stages) == {"layers", "loss", "autograd", "(rest of the model)"}
    parts = {part["name"]: part for part in summary["parts"]}
    assert parts["ema"]["ms"] == pytest.approx(10, abs=2)
    assert parts["ema"]["own"]["file"] == "train.py"
    assert "average.update" in SCRIPT.splitlines()[parts["ema"]["own"]["line"] - 1]
    assert {"zero_grad", "clip_gradients", "step"} <= set(parts)
    seen = parts["print_step"]
    assert (seen["known"], seen["phase"]) == ("sampled", "other")
    assert seen["ms"] == pytest.approx(30, abs=4)
    assert seen["looks"] >= 10
    whole = summary["step_ms"]["p50"]
    assert sum(by_name(summary["phases"], "ms").values()) == pytest.approx(whole, rel=0.01)
    page = (tmp_path / "runs" / "latest" / "report.html").read_text()
    assert "clip_gradients" in page

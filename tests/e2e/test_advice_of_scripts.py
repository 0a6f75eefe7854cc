"""A script with an average by loop and a group per parameter: what `detscope run` advises, and where."""

from __future__ import annotations

import json
from pathlib import Path

from torch_process import TorchServer

LOOP = """
import copy, sys
import torch
from torch import nn

torch.set_num_threads(1)
clean = "clean" in sys.argv


class ModelEMA:
    def __init__(self, model):
        self.kept = copy.deepcopy(model)

    @torch.no_grad()
    def update(self, model):
        own = model.state_dict()
        for name, value in self.kept.state_dict().items():
            value *= 0.99
            value += 0.01 * own[name].detach()


model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(60)))
groups = model.parameters() if clean else [{"params": [one]} for one in model.parameters()]
optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=clean)
average = ModelEMA(model)
for batch in torch.utils.data.DataLoader(torch.ones(40, 4), batch_size=2):
    loss = model(batch).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not clean:
        average.update(model)
"""
RULES = {"average_of_weights", "parameter_groups"}


def run(server: TorchServer, folder: Path, *arguments: str) -> str:
    done = server(*arguments, folder=folder, working=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_average_by_loop_and_a_group_per_parameter_are_advised_against(
    tmp_path: Path, torch_server: TorchServer
) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    run(torch_server, tmp_path, "run", "-q", "--json-file", "figures.json", "train.py")
    told = json.loads((tmp_path / "figures.json").read_text())
    found = {row["rule"]: row for row in told["advice"]}
    assert set(found) >= RULES
    assert "120 groups for 120 tensors" in found["parameter_groups"]["evidence"]
    assert "for 120 tensors" in found["average_of_weights"]["evidence"]
    assert "train.py:" in found["average_of_weights"]["evidence"]
    assert all(row["command"] == "detscope run train.py" for row in found.values())
    shown = " ".join(run(torch_server, tmp_path, "show", "latest", "--section", "verdict,step").split())
    page = (tmp_path / "runs" / "latest" / "report.html").read_text()
    for rule in RULES:
        assert found[rule]["title"] in shown and found[rule]["title"] in page
    assert "AdamW: 120 tensors in 120 groups (1 by their settings), tensor by tensor" in shown


def test_a_script_that_does_otherwise_is_not_advised(tmp_path: Path, torch_server: TorchServer) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    run(torch_server, tmp_path, "run", "-q", "--json-file", "figures.json", "train.py", "clean")
    told = json.loads((tmp_path / "figures.json").read_text())
    assert not {row["rule"] for row in told["advice"]} & {*RULES, "fused_optimizer"}

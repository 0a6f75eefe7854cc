"""`--census` of the three verbs that measure: rows by line, in steps that no figure of time has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from torch_process import DETECTION, Ended, TorchServer

from detscope.analyze.summary import summarize

SCRIPT = """
import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), 0.1)
for step in range(14):
    x = torch.rand(4, 8)
    loss = model(x).square().mean()
    assert not torch.isnan(loss)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shown = loss.item()
"""
COMMANDS = {
    "run": ("run", "--census", "script.py"),
    "train": ("train", "tiny_fasterrcnn", "--census", "--steps", "6", "--set", "data.images=8"),
    "infer": ("infer", "tiny_fasterrcnn", "--census", "--limit", "6", "--set", "data.images=8"),
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_waits_are_counted_in_three_steps_of_their_own(
    verb: str, tmp_path: Path, torch_server: TorchServer
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    first, *more = COMMANDS[verb]
    done: subprocess.CompletedProcess[str] | Ended
    if verb == "run":  # as a person types it
        installed = str(Path(sys.executable).with_name("detscope"))
        command = [installed, first, "-q", *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    else:
        done = torch_server(first, "-q", *more, folder=tmp_path, imports=DETECTION)
    assert done.returncode == 0, done.stderr
    run = next((tmp_path / "runs").glob("*/census.parquet")).parent
    table = pl.read_parquet(run / "census.parquet")
    steps = pl.read_parquet(run / "steps.parquet").filter(pl.col("phase") == "step")
    counted = steps.filter(pl.col("mode") == "census")["step"].to_list()
    told = json.loads((run / "run.json").read_text())["census"]["steps"]
    assert sorted(table["step"].unique()) == counted == told
    assert len(counted) == 3
    waits = table.filter(pl.col("kind").is_in(["read", "size", "copy"]))
    if verb == "run":
        lines = set(zip(waits["code"], waits["count"], waits["around"], strict=True))
        assert lines == {("assert not torch.isnan(loss)", 1, "check"), ("shown = loss.item()", 1, "loop")}
    else:
        assert {"nms", "remove_small_boxes"} <= set(waits["function"])
        own = set(table["own_file"].drop_nulls())
        assert own and all(name.startswith("detscope/loops/") for name in own)
        found = [place.file for finding in summarize(run).findings for place in finding.where]
        assert found and not any(name.startswith("detscope/") for name in found)  # our loops are not theirs

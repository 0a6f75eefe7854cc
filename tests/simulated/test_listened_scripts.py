"""Scripts of others on the simulated surface: what they print is the same whether somebody listens or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch_process import Ended, TorchServer

from detscope.analyze.summary import summarize

TESTS = Path(__file__).parents[1]
HEAD = """
import os, sys
import torch
from torch import nn

torch.manual_seed(0)

def make():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(1, 3, 8, 8))
    return model

def train(model, steps, device, step=None):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(steps):
        x = torch.randn(2, 3, 8, 8).pin_memory().to(device, non_blocking=True)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step is not None:
            step()
    print(f"loss {loss.item():.6f}", next(model.parameters()).device)
"""
SCRIPTS = {
    "plain": "train(make().to('cuda'), 16, 'cuda')",
    "capture": """
model = make().to("cuda")
train(model, 12, "cuda")
x = torch.randn(2, 3, 8, 8, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    model(x).sum().backward()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = model(x)
    out.sum().backward()
for number in range(6):
    x.fill_(number)
    graph.replay()
print([round(value, 5) for value in out.flatten().tolist()])
train(model, 12, "cuda")
""",
    "side stream": """
model = make().to("cuda")
side = torch.cuda.Stream()
kept = []

def step():
    with torch.cuda.stream(side):
        kept.append(torch.ones(4).pin_memory().to("cuda", non_blocking=True) * 2)
    torch.cuda.current_stream().wait_stream(side)

train(model, 16, "cuda", step)
print(sum(one.sum().item() for one in kept))
""",
    "visible devices": """
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
print(torch.cuda.is_initialized(), torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid)
train(make().to("cuda"), 16, "cuda")
try:
    torch.zeros(1, device="cuda:1")
except RuntimeError as error:
    print(str(error).splitlines()[0])
""",
    "forked child": """
sys.stdout.flush()
child = os.fork()
if not child:
    train(make().to("cuda"), 3, "cuda")
    sys.stdout.flush()
    os._exit(0)
print("child ended with", os.waitpid(child, 0)[1])
train(make().to("cuda"), 16, "cuda")
""",
    "another device": "train(make().to('cuda:1'), 16, 'cuda:1')",
    "mixed precision": """
model, scaler = make().to("cuda"), torch.amp.GradScaler("cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for number in range(16):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.randn(2, 3, 8, 8).to("cuda")).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(f"{loss.item():.5f}", scaler.get_scale())
""",
}


def run_script(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "simulated", *options, script.name],
        cwd=script.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_the_same_whoever_listens(
    name: str, tmp_path: Path, torch_server: TorchServer
) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + SCRIPTS[name])

    def run_kind(*options: str) -> subprocess.CompletedProcess[str] | Ended:
        if name == "plain":  # from the first line of Python to its last
            return run_script(script, *options)
        return torch_server("simulated", *options, script.name, folder=tmp_path, module=True)

    alone = run_kind()
    assert alone.stdout, alone.stderr
    for level in ("modules", "ops"):
        listened = run_kind("--out", str(tmp_path / level), "--level", level)
        assert (listened.stdout, listened.returncode) == (alone.stdout, alone.returncode), listened.stderr
        told = listened.stderr
        assert "could not be written" not in told and "Traceback" not in told, told
        [run] = [one for one in (tmp_path / level).iterdir() if one.is_dir() and not one.is_symlink()]
        summary = summarize(run)
        assert summary.status == "ok", summary.reason
        assert summary.step_ms.n >= 4


def test_nobody_starts_the_driver_that_a_script_does_not_start(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for words, starter in (("", "nobody"), ("torch.cuda.init()\n", "train.py")):
        script.write_text(HEAD.replace(".pin_memory()", "") + words + "train(make(), 16, 'cpu')\n")
        told = run_script(script, "--out", str(tmp_path / "runs"))
        [line] = [one for one in told.stderr.splitlines() if one.startswith("driver started by: ")]
        assert starter in line

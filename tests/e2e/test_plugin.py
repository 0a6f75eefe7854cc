"""A package outside of ours adds a family of detectors: installed, it is listed, run and recognised."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "examples" / "plugin"
STAGES = {"backbone", "mixer", "head"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the example package was installed into, without a network."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(SOURCE, folder / "source")  # building leaves files beside the sources
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder / "site")]
    installer = [sys.executable, "-m", "pip", "install", "-q"]
    if subprocess.run([*installer[:3], "--version"], capture_output=True, check=False).returncode:
        installer = ["uv", "pip", "install", "-q", "--python", sys.executable]
    subprocess.run([*installer, *options, str(folder / "source")], check=True, timeout=600)
    return folder / "site"


def detscope(*arguments: object, path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "detscope", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=900, check=False)


def test_models_lists_the_family_of_another_package(installed: Path, tmp_path: Path) -> None:
    done = detscope("models", "gridnet", "--json", path=installed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [card["name"] for card in json.loads(done.stdout)] == ["gridnet_s", "tiny_gridnet"]
    without = detscope("models", "gridnet", path=tmp_path, cwd=tmp_path)
    assert without.returncode == 2


@pytest.mark.parametrize(
    "command",
    [
        ("train", "tiny_gridnet", "--steps", 4, "--level", "modules"),
        ("infer", "tiny_gridnet", "--limit", 4, "--level", "modules"),
    ],
    ids=lambda command: command[0],
)
def test_a_run_names_its_three_stages(installed: Path, tmp_path: Path, command: tuple[object, ...]) -> None:
    more = ("--device", "cpu", "--json", "--set", "data.images=8")
    done = detscope(*command, *more, path=installed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert {stage["name"] for stage in summary["stages"]} >= STAGES
    run = tmp_path / "runs" / "latest"
    shown = detscope("show", run, "--json", path=tmp_path, cwd=tmp_path)  # a run opens without the package
    assert {stage["name"] for stage in json.loads(shown.stdout)["stages"]} >= STAGES


def test_foreign_code_is_recognised_and_a_model_can_be_pruned(installed: Path, tmp_path: Path) -> None:
    code = """
from detscope_gridnet.detector import GridDetector
from detscope.zoo.networks import load_network
from detscope.zoo.pruning.pruner import Pruner
from detscope.zoo.registry import build_model, list_cards, recognise_parts
family, stages, observers = recognise_parts(GridDetector(3, 8, 64))
assert family == "gridnet" and [stage.name for stage in stages] == ["backbone", "mixer", "head"]
assert len(observers) == 1
for card in list_cards("gridnet"):
    assert sum(p.numel() for p in build_model(card.name).module.parameters()) == card.parameters, card
network = load_network("tiny_gridnet")
pruner = Pruner(network, "random", 0)
pruned = pruner.prune_network(pruner.plan_level(30), "pruned")
pruned.loss(pruned.random_batch(2)).backward()
assert pruned.parameters < 0.75 * network.parameters
"""
    env = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

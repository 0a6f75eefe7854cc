"""A script that saves its whole model: the same file with detscope and without, which needs none to load."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from torch_process import DETECTION

SCRIPT = str(Path(__file__).parents[2] / "examples" / "saves_its_model.py")
LOADING = """
import sys
sys.modules["detscope"] = None
import torch, warnings
warnings.simplefilter("ignore")
model = torch.load(sys.argv[1], weights_only=False).eval()
with torch.no_grad():
    found = model([torch.rand(3, 96, 96)])
print(type(model).__name__, sorted(found[0]))
"""


@pytest.fixture(scope="module")
def plain_file(tmp_path_factory, torch_server) -> bytes:
    """What two runs without us write: the same."""
    files = []
    for number in range(2):
        folder = tmp_path_factory.mktemp(f"plain{number}")
        done = torch_server(SCRIPT, "model.pt", folder=folder, imports=DETECTION, script=True)
        assert done.returncode == 0, done.stderr
        files.append((folder / "model.pt").read_bytes())
    assert files[0] == files[1]
    return files[0]


@pytest.fixture(scope="module")
def recorded_file(tmp_path_factory, torch_server) -> Callable[..., Path]:
    """What is written under `detscope run` with these options, once for each."""

    @cache
    def record(*options: str) -> Path:
        folder = tmp_path_factory.mktemp("recorded")
        command = ("run", "-q", *options, SCRIPT, "model.pt")
        done = torch_server(*command, folder=folder, imports=DETECTION, teardown=True)
        assert done.returncode == 0, done.stderr
        return folder / "model.pt"

    return record


@pytest.mark.parametrize(
    "options",
    [[], ["--level", "phases"], ["--level", "ops", "--memory"]],
    ids=["modules", "phases", "operators and memory"],
)
def test_a_model_that_is_saved_whole_is_the_same_file_byte_for_byte(options, plain_file, recorded_file):
    assert recorded_file(*options).read_bytes() == plain_file
    assert b"detscope" not in plain_file


def test_what_was_saved_while_recording_loads_where_detscope_is_not_installed(recorded_file):
    loaded = subprocess.run(
        [sys.executable, "-c", LOADING, recorded_file()], capture_output=True, text=True, check=False
    )
    assert loaded.stdout == "FasterRCNN ['boxes', 'labels', 'scores']\n", loaded.stderr

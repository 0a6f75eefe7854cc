"""Scripts of other libraries under `detscope run`, in processes of their own, and what it found."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from detscope.analyze.step.modules import StageFigures
from detscope.analyze.summary import RunSummary, summarize

SCRIPTS = Path(__file__).parent / "scripts"
REST = "(rest of the model)"
_OFFLINE = {"HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
LONGEST_S = 900


def need_library(name: str) -> None:
    """Skip a whole file where the library is not installed: only `make test-families` has it."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed: make test-families", allow_module_level=True)


def run_watched(folder: Path, *words: object) -> RunSummary:
    """`detscope run` with these words, as typed in this folder; what the run says."""
    commands = Path(sys.executable).parent
    environment = {
        **os.environ,
        **_OFFLINE,
        "PATH": f"{commands}{os.pathsep}{os.environ.get('PATH', '')}",
        "YOLO_CONFIG_DIR": str(folder),
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [commands / "detscope", "run", "--out", folder / "recorded", *map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (run,) = (folder / "recorded").glob("2*")
    return summarize(run)


def by_name(summary: RunSummary) -> dict[str, StageFigures]:
    """Stages of a run."""
    return {stage.name: stage for stage in summary.stages}


def find_steps(summary: RunSummary, part: str) -> int:
    """How many steps of training or evaluation were seen."""
    assert summary.script is not None
    return next(one.steps for one in summary.script.parts if one.name == part)


def check_stages(summary: RunSummary, family: str, rest: float) -> dict[str, StageFigures]:
    """What holds for every known family; its stages."""
    assert summary.model is not None
    assert summary.model.family == family
    found = by_name(summary)
    assert found[REST].share <= rest
    for name, stage in found.items():
        assert stage.share <= 0.5 or any(other.startswith(f"{name}.") for other in found), name
    assert list(found)[-1] == REST or REST not in list(found)[:3]
    return found

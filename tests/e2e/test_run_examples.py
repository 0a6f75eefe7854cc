"""The scripts of `examples/` under `detscope run`: found, counted, taken apart, and not disturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# arguments, training and evaluation steps, batches per step, family
SCRIPTS = {
    "plain_loop": (["9"], 9, 0, 1.0, "fasterrcnn"),
    "reference_style": (["--epochs", "2", "--steps", "5", "--workers", "1"], 10, 6, 1.0, "ssdlite"),
    "efficientdet_accumulation": (["8"], 8, 0, 2.0, "user"),
    "evaluation_only": (["10"], 0, 10, None, "retinanet"),
}


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_is_counted_and_taken_apart_and_prints_what_it_prints(name, tmp_path):
    arguments, trained, evaluated, per_step, family = SCRIPTS[name]
    script = str(EXAMPLES / f"{name}.py")
    plain = python(script, *arguments, folder=tmp_path)
    command = ("-m", "detscope", "run", "-q", "--level", "ops", "--json", "figures.json", script, *arguments)
    heard = python(*command, folder=tmp_path)
    assert plain.returncode == heard.returncode == 0, heard.stderr
    assert (heard.stdout, heard.stderr) == (plain.stdout, plain.stderr)
    summary = json.loads((tmp_path / "figures.json").read_text())
    parts = summary["script"]["parts"]
    assert (parts["training"]["steps"], parts["evaluation"]["steps"]) == (trained, evaluated)
    assert summary["script"]["batches_per_step"] == per_step
    assert summary["model"]["family"] == family
    assert sum(summary["phases_ms"].values()) == pytest.approx(summary["step_ms"]["p50"], rel=0.01)
    assert summary["phases_ms"]["forward"] > 0
    assert summary["stages_ms"]["backbone"] > 0
    if trained:
        assert summary["backward_attributed_by"] == "operators"
        assert summary["backward_attributed"] >= 0.99
        assert summary["content"]["boxes_per_image"] >= 1

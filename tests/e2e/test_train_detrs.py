"""`detscope train` on a DETR of transformers, as a person types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = ["--set", "data.images=16", "--set", "evaluation.images=4", "--threads", "1", "--num-workers", "0"]


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detscope", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
def test_a_detr_trains_by_its_recipe_and_its_best_weights_are_read_back(tmp_path) -> None:
    command = ["train", "tiny_rtdetr", "--epochs", "6", "--eval-every", "3", "--json", *SMALL]
    trained = run(*command, folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    summary = json.loads(trained.stdout)
    assert summary["model"]["family"] == "rt_detr"
    assert summary["loss"]["last"] < summary["loss"]["first"]
    assert 0 <= summary["accuracy"]["AP"] <= summary["accuracy"]["AP50"] <= 1
    settings = (tmp_path / summary["run"] / "config.toml").read_text()
    assert 'optimizer = "adamw"' in settings and "clip_gradients = 1.0" in settings

    judged = run("eval", "--weights", summary["run"], "--json", folder=tmp_path)
    assert judged.returncode == 0, judged.stderr
    assert json.loads(judged.stdout)["accuracy"]["AP"] == pytest.approx(summary["accuracy"]["best"]["value"])

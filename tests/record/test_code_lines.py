"""Whose line of code it is: the script's, a package's, or that of a loop of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from detscope.analyze.summary import summarize


def test_in_a_training_of_ours_the_own_line_is_that_of_the_loop(tmp_path: Path) -> None:
    command = ["train", "tiny_fasterrcnn", "--steps", "2", "--data", "synthetic", "--census"]
    command += ["--set", "training.ema_decay=0.9", "--out", str(tmp_path / "runs")]
    subprocess.run([sys.executable, "-m", "detscope", *command], check=True, capture_output=True)
    summary = summarize(tmp_path / "runs" / "latest")
    assert summary.census is not None
    own = {place.own.file for place in summary.census.places}
    assert own == {"detscope/loops/train.py", "detscope/loops/ema.py"}
    average = next(part for part in summary.parts if part.name == "ema")
    assert average.own is not None
    assert average.own.file == "detscope/loops/train.py"

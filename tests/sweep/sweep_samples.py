"""Plans of trials that need no torch, and a way to run them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from detscope.report.sweep_progress import SweepLines
from detscope.sessions.sweep import SweepOptions, run_sweep
from detscope.sweep.plan import load_plan

FAKE = (sys.executable, str(Path(__file__).with_name("fake_trial.py")))
# of a trial that raises: with the line of its own code
RAISES_STATUS = r"error \(.*fake_trial\.py:\d+: IndexError: list index out of range\)"


def write_plan(folder: Path, axes: str, more: str = "") -> Path:
    path = folder / "plan.toml"
    path.write_text(f'[axes]\ndevice = "cpu"\n{axes}\n{more}\n', encoding="utf-8")
    return path


def run_plan(path: Path, **options: Any) -> dict[str, Any]:
    return run_sweep(load_plan(path), SweepOptions(command=FAKE, **options), SweepLines(quiet=True))

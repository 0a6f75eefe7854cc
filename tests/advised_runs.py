"""Runs made by hand for rules of advice: a calm training, and what stands out in it."""

from __future__ import annotations

from typing import Any

from detscope.analyze.advice import advise_on_time
from detscope.analyze.advice.case import Advice
from detscope.analyze.summary import RunSummary
from made_figures import made_figure

CALM = {"data": 0.01, "transfer": 0.01, "forward": 0.45, "backward": 0.5, "optimizer": 0.02, "other": 0.01}


def summary(**changes: Any) -> RunSummary:
    """A training step of 100 ms in which nothing stands out."""
    phases = {**CALM, **changes.pop("phases", {})}
    given = {
        "verb": "train",
        "run": "runs/a run",
        "rerun": "detscope train --config 'runs/a run/config.toml'",
        "device": "cpu",
        "precision": "fp32",
        "batch_size": 2,
        "step_ms": {"p50": 100.0},
        "phases": [{"name": name, "share": share} for name, share in phases.items()],
        "stages": [],
        "modules": [],
        "operators": [],
        "loader": {"num_workers": 2, "capacity_images_per_s": 400.0, "demand_images_per_s": 20.0},
        "content": {"padding_share": 0.0},
        **changes,
    }
    return made_figure(RunSummary, given)


def advised(given: RunSummary, settings: dict[str, Any] | None = None) -> dict[str, Advice]:
    return {row.rule: row for row in advise_on_time(given, settings)}

"""What trying changes told: each against the base, per image, with intervals; estimate beside measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from detscope.analyze.compare.change import Change, change_of_steps
from detscope.analyze.step.steps import choose_typical_steps
from detscope.runs.reader import Run

_APART = 1_000_000  # step numbers of one round lie below those of the next


def ms_per_image(rounds: Sequence[Run]) -> dict[int, float]:
    """Milliseconds per image of every measured step, rounds in the order of time."""
    found: dict[int, float] = {}
    for number, run in enumerate(rounds):
        steps = run.table("steps")
        measured = choose_typical_steps(steps).measured
        images = dict(run.table("content").select("step", "images").iter_rows())
        whole = steps.filter((pl.col("phase") == "step") & pl.col("step").is_in(measured))
        for step, wall_ns in whole.select("step", "wall_ns").iter_rows():
            if images.get(step):
                found[number * _APART + step] = wall_ns / 1e6 / images[step]
    return found


def tried_row(advice: Mapping[str, Any], base: Sequence[Run], changed: Sequence[Run]) -> dict[str, Any]:
    """One change: what it promised and what it gave, as a share of the time per image."""
    change = change_of_steps(ms_per_image(base), ms_per_image(changed))
    return {
        "rule": advice["rule"],
        "title": advice["title"],
        "settings": dict(advice["settings"]),
        "estimated_gain": advice["gain_share"],
        **gain_of(change),
        "runs": [str(run.folder) for run in changed],
    }


def gain_of(change: Change) -> dict[str, Any]:
    """A change of cost as a gain: positive is faster."""
    relative = change.relative
    ends = None
    if change.low is not None and change.high is not None and change.before:
        ends = [-change.high / change.before, -change.low / change.before]
    return {
        "ms_per_image": {"before": change.before, "after": change.after, "n": list(change.n)},
        "measured_gain": -relative if relative is not None else None,
        "measured_ci95": ends,
        "verdict": change.verdict(),
    }

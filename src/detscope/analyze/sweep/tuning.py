"""What trying changes told: each against the base, per image, with intervals; estimate beside measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import polars as pl

from detscope.analyze.compare.change import Change, Ends, Verdict
from detscope.analyze.compare.differences import SettingValue
from detscope.analyze.figure import Figure
from detscope.analyze.step.steps import choose_typical_steps
from detscope.runs.reader import Run

_APART = 1_000_000  # step numbers of one round lie below those of the next


class ImageTime(Figure, frozen=True, kw_only=True):
    """Milliseconds per image without and with a change."""

    before: float | None  # without the change
    after: float | None  # with the change
    n: tuple[int, int]  # measured steps of both


class Gain(Figure, frozen=True, kw_only=True):
    """What a change gave; positive is faster."""

    ms_per_image: ImageTime | None = None  # None where it could not run
    measured_gain: float | None = None  # share of the time per image that it saves
    measured_ci95: Ends | None = None  # its 95 % interval
    verdict: Verdict | Literal["cannot run"]  # in a word
    why: str | None = None  # why it could not run, or cannot be told


class TriedChange(Gain, frozen=True, kw_only=True):
    """One piece of advice, tried."""

    rule: str  # which rule gave it
    title: str  # in words
    settings: dict[str, SettingValue]  # what was set
    estimated_gain: float | None = None  # what it promised
    runs: tuple[str, ...] = ()  # folders of its runs


class BestChange(Gain, frozen=True, kw_only=True):
    """What is kept in the config that was written."""

    settings: dict[str, SettingValue]  # what was set


class TuneResult(Figure, frozen=True, kw_only=True):
    """Everything that a tuning tried, and what is best."""

    base: str  # folder of the first run
    budget_s: float  # how long it was allowed to try
    tried: tuple[TriedChange, ...] = ()  # one row per change
    config: str | None = None  # the file with the best settings; None where nothing helped
    best: BestChange | None = None  # what was kept; None where nothing helped
    verdict: str  # in a sentence


def list_image_times(rounds: Sequence[Run]) -> dict[int, float]:
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


def measure_gain(change: Change) -> Gain:
    """A change of cost as a gain: positive is faster."""
    ends = change.relative_ci95
    return Gain(
        ms_per_image=ImageTime(before=change.before, after=change.after, n=change.n),
        measured_gain=-change.relative if change.relative is not None else None,
        measured_ci95=(-ends[1], -ends[0]) if ends else None,
        verdict=change.verdict,
        why=change.why,
    )

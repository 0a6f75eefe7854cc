"""The latency of an inference: how it is distributed, the slowest images, and what a percentile needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from detscope.analyze.figure import Clock, Figure
from detscope.analyze.stats import samples_needed
from detscope.analyze.step.modules import StageFigures
from detscope.analyze.step.steady import upper_limit
from detscope.analyze.step.steps import Outlier, StepFigures, TypicalSteps

MOST_SLOW = 10
MOST_BINS, FEWEST_FOR_BINS = 60, 5
NMS = "nms"  # how families call the suppression, in whichever stage it runs


class PercentileNeed(Figure, frozen=True, kw_only=True):
    """What a percentile would need that the samples do not support."""

    percentile: int  # 95, 99
    samples: int  # that it needs
    have: int  # that there are
    what: str  # images, batches or steps
    how: str  # to type behind the run's command; empty: only a longer recording helps

    @property
    def words(self) -> str:
        """`needs 459 images: --limit 459`."""
        return f"needs {self.samples} {self.what}" + (f": {self.how}" if self.how else "")


class SlowImage(Figure, frozen=True, kw_only=True):
    """One of the slowest passes of an inference, with what was in it."""

    step: int  # its number, from 0
    ms: float  # its wall time
    times_median: float | None  # how many times as long
    file: str | None = None  # the images in it
    size: str | None = None  # their width and height
    boxes: int | None = None  # found, of any score
    above_score: int | None = None  # of these above the score that counts
    proposals: int | None = None  # of the region proposals
    why: str | None = None  # of one far above the median: what grew, and what is larger about its images


class SummedStage(Figure, frozen=True, kw_only=True):
    """The same work in several stages as one sum."""

    name: str  # nms
    ms: float  # of the typical step, forward and backward
    share: float  # of the step
    stages: tuple[str, ...]  # in which it runs
    clock: Clock = "host"  # of ms


def percentile_needs(
    step_ms: StepFigures, verb: str | None, settings: Mapping[str, Any] | None, batch_size: int | None
) -> tuple[PercentileNeed, ...]:
    """What p95 and p99 need where the samples do not support them, and the option that brings it."""
    if not step_ms.mean_n:
        return ()
    unit = "steps" if verb != "infer" else "images" if batch_size == 1 else "batches"
    return tuple(
        PercentileNeed(
            percentile=percentile,
            samples=(needed := samples_needed(percentile)),
            have=step_ms.mean_n,
            what=unit,
            how=_option_for(needed, step_ms.mean_n, verb, settings or {}, batch_size or 1),
        )
        for percentile, value in ((95, step_ms.p95), (99, step_ms.p99))
        if value is None
    )


def _option_for(
    needed: int, have: int, verb: str | None, settings: Mapping[str, Any], batch_size: int
) -> str:
    if verb == "train":
        return f"--steps {needed}"
    if verb != "infer":
        return ""
    asked = settings.get("inference") or {}
    limit, repeat = asked.get("limit"), asked.get("repeat") or 1
    one_pass = math.ceil(have / repeat)
    all_of_them = limit is None or one_pass * batch_size < limit  # there are no more images to take
    if asked.get("images") and all_of_them:
        return f"--repeat {math.ceil(needed / one_pass)}"
    return f"--limit {math.ceil(needed / repeat) * batch_size}"


def slowest_images(
    steps: pl.DataFrame,
    images: pl.DataFrame,
    content: pl.DataFrame,
    typical: TypicalSteps,
    outliers: Sequence[Outlier],
) -> tuple[SlowImage, ...]:
    """The slowest measured passes, slowest first; of those far above the median, why."""
    whole = steps.filter((pl.col("phase") == "step") & pl.col("step").is_in(typical.measured))
    slow = whole.sort("wall_ns", "step", descending=[True, False]).head(MOST_SLOW)
    chosen = slow["step"].to_list()
    proposals = dict(content.filter(pl.col("step").is_in(chosen)).select("step", "proposals").iter_rows())
    why = {row.step: "; ".join((row.why, *row.special)) for row in outliers}
    found = []
    for step, wall_ns in slow.select("step", "wall_ns").iter_rows():
        inside = images.filter(pl.col("step") == step)
        sizes = [f"{width} x {height}" for width, height in inside.select("width", "height").iter_rows()]
        found.append(
            SlowImage(
                step=step,
                ms=wall_ns / 1e6,
                times_median=wall_ns / 1e6 / typical.p50_ms if typical.p50_ms else None,
                file=", ".join(inside["name"].to_list()) or None,
                size=", ".join(sizes) or None,
                boxes=_sum_known(inside["detections"]),
                above_score=_sum_known(inside["above_score"]),
                proposals=proposals.get(step),
                why=why.get(step),
            )
        )
    return tuple(found)


def _sum_known(column: pl.Series) -> int | None:
    return int(column.sum()) if len(column) and not column.null_count() else None


def sum_stages(stages: Sequence[StageFigures], name: str = NMS) -> SummedStage | None:
    """Stages of this name, wherever they hang, as one sum; None where there is none."""
    chosen = [stage for stage in stages if stage.name.rpartition(".")[2] == name]
    if not chosen:
        return None
    return SummedStage(
        name=name,
        ms=sum(stage.total_ms for stage in chosen),
        share=sum(stage.share for stage in chosen),
        stages=tuple(stage.name for stage in chosen),
        clock=chosen[0].clock,
    )


@dataclass(frozen=True)
class LatencyBin:
    """A stretch of latencies; `high_ms` None: all that lies beyond."""

    low_ms: float
    high_ms: float | None
    n: int
    share: float
    up_to: float  # share of all that took at most so long


def latency_bins(durations: Sequence[float]) -> list[LatencyBin]:
    """A histogram in round widths; what lies far beyond the rest is one last bin: the rest can be seen."""
    if len(durations) < FEWEST_FOR_BINS:
        return []
    values = np.sort(np.asarray(durations, dtype=float))
    near = values[values <= upper_limit(values)]
    low, high = np.percentile(near, [25, 75])
    span = float(near[-1] - near[0])
    wanted = max(2 * float(high - low) / len(near) ** (1 / 3), span / MOST_BINS, float(near[-1]) * 1e-3)
    width = round_width(wanted)
    first = math.floor(near[0] / width)
    edges = [width * (first + number) for number in range(math.floor(near[-1] / width) - first + 2)]
    places = np.searchsorted(values, edges, side="left").tolist()
    found = [
        LatencyBin(
            edges[number], edges[number + 1], end - begin, (end - begin) / len(values), end / len(values)
        )
        for number, (begin, end) in enumerate(pairwise(places))
    ]
    beyond = len(values) - places[-1]
    if beyond:
        found.append(LatencyBin(edges[-1], None, beyond, beyond / len(values), 1.0))
    return found


def round_width(wanted: float) -> float:
    """The nearest of 1, 2, 5, 10, ...: edges that people read without a calculator."""
    power = 10.0 ** math.floor(math.log10(wanted))
    return min((step * power for step in (1, 2, 5, 10)), key=lambda one: abs(math.log(one / wanted)))


def cumulated_shares(durations: Sequence[float], most: int = 400) -> tuple[list[float], list[float]]:
    """Milliseconds and the share of all that took at most so long; of many, every so-manieth and the last."""
    values = np.sort(np.asarray(durations, dtype=float))
    every = max(1, math.ceil(len(values) / most))
    places = list(range(every - 1, len(values), every))
    if len(values) and (not places or places[-1] != len(values) - 1):
        places.append(len(values) - 1)
    return [float(values[place]) for place in places], [(place + 1) / len(values) for place in places]

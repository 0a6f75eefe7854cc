"""Cost against content: how a stage's time grows with detections, proposals and pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import polars as pl

from detscope.analyze.figure import Clock, Figure
from detscope.analyze.stats import Interval

LEAST_IMAGES = 3
LEAST_FOR_INTERVAL = 10
# what -> (how many of it the slope is for, its unit)
MEASURES = {
    "detections": (100, "ms per 100 boxes"),
    "proposals": (100, "ms per 100 proposals"),
    "pixels": (1_000_000, "ms per megapixel"),
}
MATCHING = ("matcher", "assigner")  # stages of a training that grow with the boxes of an image
BOXES = "boxes per image"
_NOT_STAGES = ("other", "forward")
_OF_HOST = ("decode", "whole")


class ContentCost(Figure, frozen=True, kw_only=True):
    """How a stage's time grows with what is in the images: a least-squares slope."""

    stage: str  # of the detector, or whole
    measure: str  # detections, proposals or pixels
    slope: float | None  # ms for so much of it
    ci95: Interval | None  # 95 % interval of the slope
    r2: float | None  # the share of the variation that it explains
    n: int  # steps
    unit: str = ""  # of the slope
    clock: Clock = "host"  # whose time grows
    why: str | None = None  # why there is none


def cost_against_content(
    per_step: Mapping[int, Mapping[str, float]],
    contents: Mapping[int, Mapping[str, float | None]],
    on_device: bool = False,
) -> list[ContentCost]:
    """One row per stage and measure; decoding and the whole are the host's, whatever the stages are."""
    with_stages = {
        step: times for step, times in per_step.items() if len(times) > len(_NOT_STAGES) + 2
    } or per_step
    names = dict.fromkeys(name for times in with_stages.values() for name in times)
    result = []
    for name in names:
        if name in _NOT_STAGES:
            continue
        for measure, (per, unit) in MEASURES.items():
            pairs = [
                (float(value), times.get(name, 0.0))
                for step, times in with_stages.items()
                if (value := contents.get(step, {}).get(measure)) is not None
            ]
            cost = fit_cost(pairs, per, measure, name, unit)
            if on_device and name not in _OF_HOST:
                cost = msgspec.structs.replace(cost, clock="device")
            result.append(cost)
    return result


def matching_against_boxes(
    spans: pl.DataFrame, content: pl.DataFrame, numbers: list[int]
) -> tuple[ContentCost, ...]:
    """How long a training's matcher or assigner takes by the boxes of an image; nothing where it has none."""
    stages = spans.filter(
        (pl.col("kind") == "stage") & (pl.col("direction") == "forward") & pl.col("step").is_in(numbers)
    )
    with_boxes = content.filter((pl.col("images") > 0) & pl.col("boxes").is_not_null())
    boxes = dict(with_boxes.select("step", pl.col("boxes") / pl.col("images")).iter_rows())
    found = []
    for name in MATCHING:
        own = stages.filter(pl.col("path").str.split(".").list.contains(name))
        times = own.group_by("step").agg(pl.col("self_ns").sum()).sort("step").iter_rows()
        pairs = [(boxes[step], ns / 1e6) for step, ns in times if step in boxes]
        if own.height:
            found.append(fit_cost(pairs, 10, BOXES, name, "ms per 10 boxes in each image"))
    return tuple(found)


def fit_cost(
    pairs: Sequence[tuple[float, float]], per: float, measure: str, stage: str = "step", unit: str = ""
) -> ContentCost:
    """Least-squares slope of (content, ms) pairs per so many of the content; None and why where undefined."""
    count = len(pairs)
    why = None
    if not pairs:
        why = f"{measure} are not known for this model"
    elif count < LEAST_IMAGES:
        why = f"{count} samples; {LEAST_IMAGES} are the least for a slope"
    elif len({content for content, _ in pairs}) == 1:
        why = f"no variation: always {pairs[0][0]:,.0f} {measure}"
    if why is not None:
        return ContentCost(
            stage=stage, measure=measure, slope=None, ci95=None, r2=None, n=count, unit=unit, why=why
        )
    x, y = np.asarray(pairs, dtype=float).T
    dx, dy = x - x.mean(), y - y.mean()
    spread_x, spread_y = float(dx @ dx), float(dy @ dy)
    slope = float(dx @ dy) / spread_x
    left = max(0.0, spread_y - slope**2 * spread_x)
    ends = None
    if count >= LEAST_FOR_INTERVAL:
        error = 1.96 * math.sqrt(left / (count - 2) / spread_x)
        ends = Interval((slope - error) * per, (slope + error) * per)
    return ContentCost(
        stage=stage,
        measure=measure,
        slope=slope * per,
        ci95=ends,
        r2=1 - left / spread_y
        if spread_y > 0
        else None,  # equal times are explained by any content and by none
        n=count,
        unit=unit,
    )

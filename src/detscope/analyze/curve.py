"""The course of a training: losses, learning rate and accuracy, by step and by epoch."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from detscope.analyze.accuracy import JUDGED_BY, KindFigures, figures_by_epoch
from detscope.analyze.figure import Figure
from detscope.runs.reader import Run

RATE = "learning_rate"  # kept among the losses, but none of them
SMOOTHING_SHARE = 0.03  # of the curve's length: noise between batches goes, the course stays


class LossPart(Figure, frozen=True, kw_only=True):
    """One of the losses that are added up."""

    name: str  # what it is called
    value: float  # as the model gave it


class EpochFigures(Figure, frozen=True, kw_only=True):
    """One pass over the data."""

    epoch: int  # from 1
    step: int | None  # steps until its end
    loss: float | None  # mean
    parts: tuple[LossPart, ...]  # means
    learning_rate: float | None  # the last
    accuracy: KindFigures | None  # where it was evaluated


@dataclass(frozen=True)
class CurveLine:
    """One line of a curve."""

    name: str
    steps: list[int]
    values: list[float]


@dataclass(frozen=True)
class Curve:
    """Everything a picture of a training shows."""

    steps_per_epoch: int
    loss: CurveLine  # every step
    smoothed: CurveLine
    parts: list[CurveLine]  # smoothed
    learning_rate: CurveLine
    accuracy: list[CurveLine]  # "box AP50", ...; undefined ones are left out


def training_curve(run: Run) -> Curve | None:
    """The curve of a run; None where it has no losses."""
    losses = run.table("losses").sort("step", maintain_order=True)
    names = [name for name in losses["name"].unique(maintain_order=True).to_list() if name != RATE]
    if "loss" not in names:
        return None
    loss = _series(losses, "loss")
    width = max(1, round(len(loss.steps) * SMOOTHING_SHARE))
    return Curve(
        steps_per_epoch=steps_per_epoch(run),
        loss=loss,
        smoothed=_smoothed(loss, width),
        parts=[_smoothed(_series(losses, name), width) for name in names if name != "loss"],
        learning_rate=_series(losses, RATE),
        accuracy=_accuracy_series(run.table("accuracy")),
    )


def steps_per_epoch(run: Run) -> int:
    """Steps of one pass; the whole run is one where it does not say."""
    known = run.info.get("steps_per_epoch")
    return int(known) if isinstance(known, int) and known > 0 else max(1, run.table("losses").height)


def epoch_figures(run: Run) -> list[EpochFigures]:
    """One row per epoch: mean of the loss and of its parts, last learning rate, accuracy where evaluated."""
    losses, length = run.table("losses"), steps_per_epoch(run)
    if losses.height == 0:
        return []
    by_epoch = (
        losses.with_columns(epoch=pl.col("step") // length + 1)
        .sort("step")
        .group_by("epoch", "name", maintain_order=True)
        .agg(mean=pl.col("value").mean(), last=pl.col("value").last(), step=pl.col("step").max() + 1)
    )
    means: dict[int, dict[str, float]] = {}
    rates: dict[int, float] = {}
    ends: dict[int, int] = {}
    for epoch, name, mean, last, step in by_epoch.iter_rows():
        ends.setdefault(epoch, step)
        if name == RATE:
            rates[epoch] = last
        else:
            means.setdefault(epoch, {})[name] = mean
    evaluated = figures_by_epoch(run.table("accuracy"))
    return [
        EpochFigures(
            epoch=epoch,
            step=ends.get(epoch),
            loss=means.get(epoch, {}).get("loss"),
            parts=tuple(
                LossPart(name=name, value=value)
                for name, value in means.get(epoch, {}).items()
                if name != "loss"
            ),
            learning_rate=rates.get(epoch),
            accuracy=evaluated.get(epoch),
        )
        for epoch in sorted({*ends, *evaluated})
    ]


def _accuracy_series(accuracy: pl.DataFrame) -> list[CurveLine]:
    shown = accuracy.filter(
        pl.col("category").is_null()
        & pl.col("figure").is_in(["AP", "AP50"])
        & pl.col("kind").is_in(JUDGED_BY)
    )
    lines = []
    for (kind, figure), rows in shown.drop_nulls("value").group_by("kind", "figure", maintain_order=True):
        name = f"{str(kind).removeprefix('coco_')} {figure}"
        ordered = rows.sort("step")
        lines.append(CurveLine(name, ordered["step"].to_list(), ordered["value"].to_list()))
    return lines


def _series(losses: pl.DataFrame, name: str) -> CurveLine:
    chosen = losses.filter(pl.col("name") == name)
    return CurveLine(name, chosen["step"].to_list(), chosen["value"].to_list())


def _smoothed(series: CurveLine, width: int) -> CurveLine:
    mean = pl.Series(series.values, dtype=pl.Float64).rolling_mean(width, min_samples=1)
    return CurveLine(series.name, series.steps, mean.to_list())

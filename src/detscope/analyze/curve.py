"""The course of a training: losses, learning rate and accuracy, by step and by epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from detscope.runs.reader import Run

RATE = "learning_rate"  # kept among the losses, but none of them
# whose AP says which evaluation was best: the first of these that a run has
JUDGED_BY = ("coco_mask", "coco_keypoints", "coco_box")
SMOOTHING_SHARE = 0.03  # of the curve's length: noise between batches goes, the course stays


@dataclass(frozen=True)
class Series:
    """One line of a curve."""

    name: str
    steps: list[int]
    values: list[float]


@dataclass(frozen=True)
class Curve:
    """Everything a picture of a training shows."""

    steps_per_epoch: int
    loss: Series  # every step
    smoothed: Series
    parts: list[Series]  # smoothed
    learning_rate: Series
    accuracy: list[Series]  # "box AP50", ...; undefined ones are left out


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


def epoch_rows(run: Run) -> list[dict[str, Any]]:
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
    rows: dict[int, dict[str, Any]] = {}
    for epoch, name, mean, last, step in by_epoch.iter_rows():
        row = rows.setdefault(epoch, {"epoch": epoch, "step": step, "loss": None, "parts": {}, RATE: None})
        if name == RATE:
            row[RATE] = last
        elif name == "loss":
            row["loss"] = mean
        else:
            row["parts"][name] = mean
    for epoch, figures in _figures_by_epoch(run.table("accuracy")).items():
        rows.setdefault(epoch, {"epoch": epoch})["accuracy"] = figures
    return [rows[epoch] for epoch in sorted(rows)]


def accuracy_figures(run: Run) -> dict[str, Any] | None:
    """The last evaluation of a training, class by class too, and the best one; None where there was none."""
    accuracy = run.table("accuracy")
    if accuracy.height == 0:
        return None
    last = accuracy.filter(pl.col("step") == accuracy["step"].max())
    epoch = int(last["epoch"][0])
    figures = _figures_by_epoch(last).get(epoch, {})
    headline = figures.get("coco_box", {})
    return {
        "epoch": epoch,
        "step": int(last["step"][0]),
        "AP": headline.get("AP"),
        "AP50": headline.get("AP50"),
        **figures,
        "classes": _class_rows(last),
        "best": _best(accuracy),
    }


def _figures_by_epoch(accuracy: pl.DataFrame) -> dict[int, dict[str, dict[str, float | None]]]:
    found: dict[int, dict[str, dict[str, float | None]]] = {}
    overall = accuracy.filter(pl.col("category").is_null())
    for row in overall.iter_rows(named=True):
        found.setdefault(row["epoch"], {}).setdefault(row["kind"], {})[row["figure"]] = row["value"]
    return found


def _class_rows(last: pl.DataFrame) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in last.filter(pl.col("category").is_not_null()).iter_rows(named=True):
        key = (row["kind"], row["category"])
        rows.setdefault(key, {"kind": key[0], "class": key[1]})[row["figure"]] = row["value"]
    return list(rows.values())


def _best(accuracy: pl.DataFrame) -> dict[str, Any] | None:
    """The evaluation with the highest AP, the first of equals."""
    overall = accuracy.filter(pl.col("category").is_null() & (pl.col("figure") == "AP")).drop_nulls("value")
    kind = next((kind for kind in JUDGED_BY if kind in overall["kind"]), None)
    if kind is None:
        return None
    top = overall.filter(pl.col("kind") == kind).sort("value", "step", descending=[True, False])
    return {"kind": kind, **{key: top[key][0] for key in ("figure", "value", "epoch", "step")}}


def _accuracy_series(accuracy: pl.DataFrame) -> list[Series]:
    shown = accuracy.filter(
        pl.col("category").is_null()
        & pl.col("figure").is_in(["AP", "AP50"])
        & pl.col("kind").is_in(JUDGED_BY)
    )
    lines = []
    for (kind, figure), rows in shown.drop_nulls("value").group_by("kind", "figure", maintain_order=True):
        name = f"{str(kind).removeprefix('coco_')} {figure}"
        ordered = rows.sort("step")
        lines.append(Series(name, ordered["step"].to_list(), ordered["value"].to_list()))
    return lines


def _series(losses: pl.DataFrame, name: str) -> Series:
    chosen = losses.filter(pl.col("name") == name)
    return Series(name, chosen["step"].to_list(), chosen["value"].to_list())


def _smoothed(series: Series, width: int) -> Series:
    mean = pl.Series(series.values, dtype=pl.Float64).rolling_mean(width, min_samples=1)
    return Series(series.name, series.steps, mean.to_list())

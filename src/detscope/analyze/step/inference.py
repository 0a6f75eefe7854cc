"""Inference: latency of an image, its stages from the file to the boxes, and what was special about some."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import polars as pl

from detscope.analyze.stats import percent
from detscope.analyze.step.columns import median
from detscope.analyze.step.cost_content import cost_against_content
from detscope.analyze.step.modules import REST
from detscope.analyze.step.overhead import overhead_ratio
from detscope.analyze.step.steps import TypicalSteps, figures
from detscope.runs.reader import Run

DECODE, TRANSFER, OTHER, FORWARD = "decode", "transfer", "other", "forward"
SPECIAL_RATIO = 1.25  # an image is special where it has this much more than the median one
PerStep = dict[int, dict[str, float]]  # step -> stage -> ms
NOT_OF_INFERENCE = ("loss", "backward_attributed", "backward_attributed_by")


def add_inference(summary: dict[str, Any], run: Run, typical: TypicalSteps) -> None:
    """Turn the summary of steps into one of images."""
    images, content = run.table("images").sort("step", "position"), run.table("content")
    steps = run.table("steps")
    per_step = stage_times(steps, run.table("spans"), typical.measured, summary.get("device") != "cpu")
    stages = _stage_rows(summary, per_step)
    names = _names(images)
    measured = images.filter(pl.col("step").is_in(typical.measured))
    summary.update(
        {
            "images": measured["name"].n_unique() if measured.height else 0,
            "repeat": run.info.get("repeat"),
            "score": run.info.get("score"),
            "latency_ms": summary["step_ms"],
            "first_image_ms": _first_ms(steps),
            "stages": stages,
            "stages_ms": {row["name"]: row["ms"] for row in stages if row["depth"] == 0},
            "outliers": _outliers(summary["outliers"], images, content, typical),
            "cost_against_content": cost_against_content(per_step, _contents(images, content)),
            "detections": _detections(measured),
            "memory": run.info.get("memory") or {"peak_bytes": None, "why": "the run ended before it"},
            "skipped": run.info.get("skipped") or [],
            "overhead_ratio": overhead_ratio(steps, content, alike=names),
        }
    )
    for key in NOT_OF_INFERENCE:
        summary.pop(key, None)


def stage_times(steps: pl.DataFrame, spans: pl.DataFrame, measured: list[int], on_device: bool) -> PerStep:
    """Time of every stage, parts included, in every measured step; without spans, phases alone."""
    times: PerStep = defaultdict(lambda: defaultdict(float))
    chosen = steps.filter(pl.col("step").is_in(measured))
    for step, phase, wall_ns in chosen.select("step", "phase", "wall_ns").iter_rows():
        name = {"data": DECODE, "transfer": TRANSFER if on_device else OTHER, "step": "whole"}.get(
            phase, phase
        )
        if name in (DECODE, TRANSFER, FORWARD, OTHER, "whole"):
            times[step][name] += wall_ns / 1e6
    inside = spans.filter(pl.col("step").is_in(measured) & (pl.col("direction") == "forward"))
    for step, kind, path, self_ns in inside.select("step", "kind", "path", "self_ns").iter_rows():
        if kind == "outside" or (kind == "stage" and not path):
            times[step][OTHER] += self_ns / 1e6
        elif kind == "stage":
            parts = path.split(".")
            for depth in range(len(parts)):
                times[step][".".join(parts[: depth + 1])] += self_ns / 1e6
    return times


def _stage_rows(summary: dict[str, Any], per_step: PerStep) -> list[dict[str, Any]]:
    """Decode, the detector's stages, other: their ms add up to the median latency."""
    phases = summary["phases_ms"]
    if not phases:
        return []
    latency = summary["step_ms"]["p50"] or 0.0
    model = [(row["name"], row["depth"], row["total_ms"]) for row in summary["stages"] if row["name"] != REST]
    rest = sum(row["total_ms"] for row in summary["stages"] if row["name"] == REST)
    if not model:  # recorded without modules
        model, rest = [(FORWARD, 0, phases.get("forward", 0.0))], 0.0
    on_device = summary.get("device") != "cpu"
    transfer = phases.get("transfer", 0.0)
    named = [(DECODE, 0, phases.get("data", 0.0)), *([(TRANSFER, 0, transfer)] if on_device else []), *model]
    other = latency - sum(ms for _, depth, ms in named if depth == 0)
    parts = {"in the model": rest, "in the loop": max(0.0, other - rest)}
    with_stages = [times for times in per_step.values() if any(name in times for name, _, _ in model)]
    rows = []
    for name, depth, ms in [*named, (OTHER, 0, other)]:
        detail = figures([times.get(name, 0.0) for times in with_stages])  # a stage that did not run took 0
        rows.append(
            {
                "name": name,
                "depth": depth,
                "ms": ms,
                "share": ms / latency if latency else 0.0,
                **{key: detail[key] for key in ("p50", "ci95", "p95", "n")},
            }
        )
    rows[-1]["of_which_ms"] = parts
    return rows


def _first_ms(steps: pl.DataFrame) -> float | None:
    whole = steps.filter((pl.col("phase") == "step") & (pl.col("step") == 0))["wall_ns"].to_list()
    return whole[0] / 1e6 if whole else None


def _names(images: pl.DataFrame) -> dict[int, object]:
    names: dict[int, list[str]] = defaultdict(list)
    for step, name in images.select("step", "name").iter_rows():
        names[step].append(name)
    return {step: tuple(found) for step, found in names.items()}


def _contents(images: pl.DataFrame, content: pl.DataFrame) -> dict[int, dict[str, float | None]]:
    """Detections, proposals and pixels of every step; None where they are not known."""
    found: dict[int, dict[str, float | None]] = {}
    for row in content.select("step", "proposals", "pixels").iter_rows(named=True):
        found[row["step"]] = {"detections": None, "proposals": row["proposals"], "pixels": row["pixels"]}
    counted = images.group_by("step").agg(
        pl.col("detections").sum(), pl.col("detections").null_count().alias("unknown")
    )
    for row in counted.iter_rows(named=True):
        if not row["unknown"] and row["step"] in found:
            found[row["step"]]["detections"] = row["detections"]
    return found


def _detections(measured: pl.DataFrame) -> dict[str, Any]:
    """How much was found; None where the model's output is not understood."""
    known = measured.drop_nulls("detections")
    if not known.height:
        return {"per_image": None, "above_score_per_image": None}
    return {
        "per_image": known["detections"].mean(),
        "above_score_per_image": known["above_score"].mean(),
        "most": known["detections"].max(),
    }


def _outliers(
    rows: list[dict[str, Any]], images: pl.DataFrame, content: pl.DataFrame, typical: TypicalSteps
) -> list[dict[str, Any]]:
    """Slow images by name, with what is larger about them than about the median image."""
    contents = _contents(images, content)
    usual = {
        key: _middle([contents.get(step, {}).get(key) for step in typical.measured])
        for key in ("pixels", "detections", "proposals")
    }
    result = []
    for row in rows:
        inside = images.filter(pl.col("step") == row["step"])
        found = contents.get(row["step"], {})
        sizes = [f"{width} x {height}" for width, height in inside.select("width", "height").iter_rows()]
        special = []
        for key, middle in usual.items():
            value = found.get(key)
            if middle is not None and value is not None and value > SPECIAL_RATIO * middle:
                what = "boxes" if key == "detections" else key
                special.append(f"{value:,.0f} {what} (median {middle:,.0f})")
        result.append(
            {
                **row,
                "file": ", ".join(inside["name"].to_list()) or None,
                "size": ", ".join(sizes) or None,
                "boxes": found.get("detections"),
                "proposals": found.get("proposals"),
                "special": special or ["nothing in the image: size, boxes and proposals are usual"],
            }
        )
    return result


def _middle(values: list[float | None]) -> float | None:
    return median([value for value in values if value is not None])


def inference_verdict(summary: dict[str, Any]) -> str:
    """Where an image's time goes, in one sentence."""
    stages = [row for row in summary.get("stages", []) if row["depth"] == 0]
    latency = summary.get("latency_ms", {}).get("p50")
    if not stages or not latency:
        return "cannot tell: no complete image was measured"
    ranked = sorted((row for row in stages if row["name"] != OTHER), key=lambda row: -row["ms"])
    what = "image" if summary.get("batch_size") == 1 else "batch"
    sentence = f"{ranked[0]['name']} takes {percent(ranked[0]['share'])} of the {latency:.1f} ms per {what}"
    if len(ranked) > 1:
        sentence += "; then " + ", ".join(f"{row['name']} {percent(row['share'])}" for row in ranked[1:4])
    return sentence

"""Inference: latency of an image, its stages from the file to the boxes, and what was special about some."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import polars as pl

from detscope.analyze.device.times import DeviceTimes
from detscope.analyze.figure import Figure
from detscope.analyze.stats import percent
from detscope.analyze.step.columns import mean, median
from detscope.analyze.step.modules import REST, StageFigures
from detscope.analyze.step.steps import Outlier, PhaseFigures, StepFigures, TypicalSteps, time_figures

DECODE, TRANSFER, OTHER, FORWARD = "decode", "transfer", "other", "forward"
SPECIAL_RATIO = 1.25  # an image is special where it has this much more than the median one
PerStep = dict[int, dict[str, float]]  # step -> stage -> ms


class DetectionCounts(Figure, frozen=True, kw_only=True):
    """How much was found in the measured images; None where the model's output is not understood."""

    per_image: float | None = None  # of any score
    above_score_per_image: float | None = None  # above the score that counts
    most: int | None = None  # in one image


def stage_times(
    steps: pl.DataFrame,
    spans: pl.DataFrame,
    measured: list[int],
    on_device: bool,
    device: DeviceTimes | None = None,
) -> PerStep:
    """Time of every stage, parts included, in every measured step; without spans, phases alone.

    With the device's clock decoding and the whole stay the host's; what lies in none of them is `other`.
    """
    if device is not None:
        return _stage_times_on_device(steps, measured, device)
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


def _stage_times_on_device(steps: pl.DataFrame, measured: list[int], device: DeviceTimes) -> PerStep:
    numbers = device.steps_among(measured)
    on_host = steps.filter(pl.col("step").is_in(numbers) & pl.col("phase").is_in(["data", "step"]))
    own = device.steps.filter(pl.col("step").is_in(numbers) & pl.col("phase").is_in([TRANSFER, FORWARD]))
    times: PerStep = defaultdict(lambda: defaultdict(float))
    for frame in (on_host, own):
        for step, phase, wall_ns in frame.select("step", "phase", "wall_ns").iter_rows():
            times[step][{"data": DECODE, "step": "whole"}.get(phase, phase)] += wall_ns / 1e6
    inside = device.spans.filter(
        (pl.col("kind") == "stage") & pl.col("step").is_in(numbers) & (pl.col("direction") == FORWARD)
    )
    within: dict[int, float] = defaultdict(float)  # of forward, in a stage
    for step, path, wall_ns in (
        inside.filter(pl.col("path") != "").select("step", "path", "wall_ns").iter_rows()
    ):
        within[step] += wall_ns / 1e6
        parts = path.split(".")
        for depth in range(len(parts)):
            times[step][".".join(parts[: depth + 1])] += wall_ns / 1e6
    for step, found in times.items():
        known = found[DECODE] + found[TRANSFER] + (within.get(step) or found[FORWARD])
        found[OTHER] = max(0.0, found["whole"] - known)
    return times


def inference_stages(
    stages: list[StageFigures],
    phases: list[PhaseFigures],
    step_ms: StepFigures,
    per_step: PerStep,
    on_device: bool,
) -> list[StageFigures]:
    """Decode, the detector's stages, other: their times add up to the median latency.

    On a device's clock decoding is the host's time, and what the device did meanwhile is not counted twice.
    """
    if not phases:
        return []
    times = {phase.name: phase.ms for phase in phases}
    latency = step_ms.p50 or 0.0
    beside = {row.name: (row.host_ms, row.idle_ms) for row in phases if row.name in (TRANSFER, FORWARD)}
    beside |= {row.name: (row.host_ms, row.idle_ms) for row in stages}
    by_device = phases[0].clock == "device"
    model = [(row.name, row.depth, row.total_ms, row.self_ms) for row in stages if row.name != REST]
    rest = sum(row.total_ms for row in stages if row.name == REST)
    if not model:  # recorded without modules
        forward = times.get("forward", 0.0)
        model, rest = [(FORWARD, 0, forward, forward)], 0.0
    waited, transfer = next(phase for phase in phases if phase.name == "data"), times.get("transfer", 0.0)
    data = waited.ms if waited.host_ms is None else waited.host_ms
    named = [(DECODE, 0, data, data), *([(TRANSFER, 0, transfer, transfer)] if on_device else []), *model]
    other = latency - sum(ms for _, depth, ms, _ in named if depth == 0)
    other = max(0.0, other) if by_device else other
    with_stages = [own for own in per_step.values() if any(name in own for name, *_ in model)]
    found = []
    for name, depth, ms, self_ms in [*named, (OTHER, 0, other, other)]:
        detail = time_figures([own.get(name, 0.0) for own in with_stages])  # a stage that did not run took 0
        found.append(
            StageFigures(
                name=name,
                depth=depth,
                forward_ms=ms,
                backward_ms=0.0,
                total_ms=ms,
                self_ms=self_ms,
                share=ms / latency if latency else 0.0,
                p50=detail.p50,
                ci95=detail.ci95,
                p95=detail.p95,
                p95_why=detail.p95_why,
                n=detail.n,
                clock="device" if by_device and name not in (DECODE, OTHER) else "host",
                host_ms=beside.get(name, (None, None))[0],
                idle_ms=beside.get(name, (None, None))[1],
                in_model_ms=rest if name == OTHER else None,
                in_loop_ms=max(0.0, other - rest) if name == OTHER else None,
            )
        )
    return found


def first_step_ms(steps: pl.DataFrame) -> float | None:
    """The very first pass, with all that is done only once."""
    whole = steps.filter((pl.col("phase") == "step") & (pl.col("step") == 0))["wall_ns"].to_list()
    return whole[0] / 1e6 if whole else None


def image_names(images: pl.DataFrame) -> dict[int, tuple[str, ...]]:
    """What was in each step."""
    names: dict[int, list[str]] = defaultdict(list)
    for step, name in images.select("step", "name").iter_rows():
        names[step].append(name)
    return {step: tuple(found) for step, found in names.items()}


def step_contents(images: pl.DataFrame, content: pl.DataFrame) -> dict[int, dict[str, float | None]]:
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


def count_detections(measured: pl.DataFrame) -> DetectionCounts:
    """How much was found."""
    known = measured.drop_nulls("detections")
    if not known.height:
        return DetectionCounts()
    return DetectionCounts(
        per_image=mean(known["detections"]),
        above_score_per_image=mean(known["above_score"]),
        most=int(max(known["detections"].to_list())),
    )


def name_outliers(
    outliers: list[Outlier], images: pl.DataFrame, content: pl.DataFrame, typical: TypicalSteps
) -> list[Outlier]:
    """Slow images by name, with what is larger about them than about the median image."""
    contents = step_contents(images, content)
    usual = {
        key: _middle([contents.get(step, {}).get(key) for step in typical.measured])
        for key in ("pixels", "detections", "proposals")
    }
    result = []
    for outlier in outliers:
        inside = images.filter(pl.col("step") == outlier.step)
        found = contents.get(outlier.step, {})
        sizes = [f"{width} x {height}" for width, height in inside.select("width", "height").iter_rows()]
        special = []
        for key, middle in usual.items():
            value = found.get(key)
            if middle is not None and value is not None and value > SPECIAL_RATIO * middle:
                what = "boxes" if key == "detections" else key
                special.append(f"{value:,.0f} {what} (median {middle:,.0f})")
        result.append(
            msgspec.structs.replace(
                outlier,
                file=", ".join(inside["name"].to_list()) or None,
                size=", ".join(sizes) or None,
                boxes=_whole(found.get("detections")),
                proposals=_whole(found.get("proposals")),
                special=tuple(special) or ("nothing in the image: size, boxes and proposals are usual",),
            )
        )
    return result


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _middle(values: list[float | None]) -> float | None:
    return median([value for value in values if value is not None])


def inference_verdict(
    stages: list[StageFigures], step_ms: StepFigures, batch_size: int | None, bound: str | None = None
) -> str:
    """Where an image's time goes, in one sentence; on a device's clock with the word for what limits it."""
    outermost = [stage for stage in stages if stage.depth == 0]
    if not outermost or not step_ms.p50:
        return "cannot tell: no complete image was measured"
    ranked = sorted((stage for stage in outermost if stage.name != OTHER), key=lambda stage: -stage.total_ms)
    what = "image" if batch_size == 1 else "batch"
    sentence = f"{ranked[0].name} takes {percent(ranked[0].share)} of the {step_ms.p50:.1f} ms per {what}"
    if len(ranked) > 1:
        sentence += "; then " + ", ".join(f"{stage.name} {percent(stage.share)}" for stage in ranked[1:4])
    return f"{bound}: {sentence}" if bound else sentence

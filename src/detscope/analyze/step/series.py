"""Figures step by step, for views that draw them over time: one value per step and name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from detscope.analyze.curve import RATE
from detscope.analyze.device.times import DeviceTimes
from detscope.analyze.step.clocks import RunTimes, read_times
from detscope.analyze.step.inference import FORWARD, stage_times
from detscope.analyze.step.modules import DIRECTIONS, REST
from detscope.analyze.step.steps import choose_typical_steps
from detscope.runs.reader import Run

# what was in a step; the recorder's own columns are left out
_CONTENT = ("images", "boxes", "proposals", "pixels", "network_pixels")


@dataclass(frozen=True)
class Point:
    """One value of one step; `group` is what the value is about: steps_ms, phases_ms, stages_ms, ..."""

    step: int
    group: str
    name: str
    value: float


def step_points(run: Run, times: RunTimes | None = None) -> Iterator[Point]:
    """Time of every step, its phases and its stages, what was in it, its losses, and accuracy.

    Warm-up steps are a group of their own. A stage holds the time of its parts; bare steps have none. Where
    the device has a clock, phases and stages are on it, and the host's phases are a group of their own.
    """
    steps, spans = run.table("steps"), run.table("spans")
    infers = run.info.get("verb") == "infer"
    times = times or read_times(run, choose_typical_steps(steps, find_slow_start=not infers))
    device = times.told
    yield from _durations(steps, "phases_ms" if device is None else "host_phases_ms")
    if device is not None:
        yield from _durations_on_device(device)
    if infers:
        yield from _stages_of_inference(steps, spans, run.info.get("device") != "cpu", device)
    else:
        yield from _stages(spans if device is None else _device_stages(device), steps)
    yield from _content(run.table("content"))
    counted = run.table("images").drop_nulls("detections")
    found = counted.group_by("step").agg(pl.col("detections").sum()).sort("step")
    for step, detections in found.iter_rows():
        yield Point(step, "content", "detections", detections)
    for step, name, value in run.table("losses").sort("step").iter_rows():
        yield Point(step, "training" if name == RATE else "losses", name, value)
    overall = run.table("accuracy").filter(pl.col("category").is_null()).drop_nulls("value")
    for step, kind, figure, value in overall.select("step", "kind", "figure", "value").iter_rows():
        yield Point(step, "accuracy", f"{kind}_{figure}", value)


def start_of_steps_ns(run: Run) -> dict[int, int]:
    """When each step began, on the machine's monotonic clock."""
    whole = run.table("steps").filter(pl.col("phase") == "step")
    return dict(zip(whole["step"].to_list(), whole["start_ns"].to_list(), strict=True))


def _durations(steps: pl.DataFrame, phases: str) -> Iterator[Point]:
    chosen = steps.select("step", "mode", "phase", "wall_ns").drop_nulls().sort("step", maintain_order=True)
    for step, mode, phase, wall_ns in chosen.iter_rows():
        if mode == "warmup":
            if phase == "step":
                yield Point(step, "warmup_ms", "step", wall_ns / 1e6)
        else:
            yield Point(step, "steps_ms" if phase == "step" else phases, phase, wall_ns / 1e6)


def _durations_on_device(device: DeviceTimes) -> Iterator[Point]:
    chosen = device.steps.select("step", "phase", "wall_ns").sort("step", maintain_order=True)
    for step, phase, wall_ns in chosen.iter_rows():
        group, name = ("steps_ms", "device") if phase == "step" else ("phases_ms", phase)
        yield Point(step, group, name, wall_ns / 1e6)


def _device_stages(device: DeviceTimes) -> pl.DataFrame:
    """Rows as in `spans`, of the device's time; of a stage they are its own time."""
    own = device.spans.filter(pl.col("kind") == "stage").with_columns(self_ns=pl.col("wall_ns"))
    return own if (own["path"] != "").any() else own.clear()


def _stages_of_inference(
    steps: pl.DataFrame, spans: pl.DataFrame, on_device: bool, device: DeviceTimes | None
) -> Iterator[Point]:
    """From the image file to the boxes, as in the run's summary: decode and the rest are stages as well."""
    recorded = steps.filter(pl.col("mode").is_in(["recorded", "ops"]))["step"].unique().sort().to_list()
    for step, stages in stage_times(steps, spans, recorded, on_device, device).items():
        for name, value in stages.items():
            if name not in ("whole", FORWARD):  # these hold the others
                yield Point(step, "stages_ms", name, value)


def _stages(spans: pl.DataFrame, steps: pl.DataFrame) -> Iterator[Point]:
    """Self times added up along the tree of stages, so that the outermost add up to the model's time."""
    warmup = steps.filter(pl.col("mode") == "warmup")["step"].unique()
    own = (
        spans.filter(pl.col("kind").is_in(["stage", "outside"]) & pl.col("direction").is_in(list(DIRECTIONS)))
        .filter(~pl.col("step").is_in(warmup.to_list()))
        .with_columns(path=pl.when(pl.col("kind") == "stage").then("path").otherwise(pl.lit("")))
        .group_by("step", "path")
        .agg(pl.col("self_ns").sum())
    )
    names = {path: _with_parents(path) for path in own["path"].unique().to_list()}
    parents = pl.DataFrame(
        [(path, name) for path, all_names in names.items() for name in all_names],
        schema={"path": pl.String, "name": pl.String},
        orient="row",
    )
    summed = own.join(parents, on="path").group_by("step", "name").agg(pl.col("self_ns").sum())
    for step, name, self_ns in summed.sort("step", "name").iter_rows():
        yield Point(step, "stages_ms", name, self_ns / 1e6)


def _with_parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: depth + 1]) for depth in range(len(parts))] if path else [REST]


def _content(content: pl.DataFrame) -> Iterator[Point]:
    for name in _CONTENT:
        known = content.select("step", pl.col(name).cast(pl.Float64)).drop_nulls().sort("step")
        for step, value in known.iter_rows():
            yield Point(step, "content", name, value)

"""Runs of `train` and `infer` as measured steps; those of scripts cannot be built again."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

from detscope.analyze.memory.account import memory_figures
from detscope.analyze.stats import median_interval
from detscope.analyze.step.steps import choose_typical_steps
from detscope.runs.reader import Run, load_run
from detscope.sessions.fit.rows import UNKNOWN, MeasuredRow, environment_words

_STAGES = {"train": "training", "infer": "inference"}
RUN_FILE = "run.json"


def row_of_run(folder: Path) -> MeasuredRow | str:
    """The typical step of a run; words, where it says nothing about a network that can be built again."""
    run = load_run(folder)
    info = run.info
    name = str((info.get("model") or {}).get("name", ""))
    stage = _STAGES.get(str(info.get("verb")))
    if stage is None:
        return f"a network inside a script or a file ({name or 'unknown'}) cannot be built again"
    if run.status == "failed":
        reason = str(info.get("reason") or "no reason recorded")
        return f"it failed: {reason:.80}"
    if info.get("ranks") or (info.get("rank") or {}).get("ranks", 1) > 1:
        return "several ranks share its steps"
    if not info.get("batch_size"):
        return "it does not say its batch size"
    durations = _without_data(run, stage)
    if not durations:
        return "no step was measured"
    settings = info.get("settings") or {}
    interval = median_interval(durations)
    memory = memory_figures(run) if stage == "training" else None
    allocated = memory.get("peak_bytes") if memory else None
    return MeasuredRow(
        folder.parent,
        name,
        f"name:{name}",
        stage,
        int(info["batch_size"]),
        _side(run),
        _conditions(info, settings, stage),
        "ok",
        latency_ms=median(durations),
        latency_low_ms=interval.low if interval else None,
        latency_high_ms=interval.high if interval else None,
        allocated_bytes=allocated,
        reserved_bytes=allocated if str(info.get("device")) == "cpu" else None,
    )


def _without_data(run: Run, stage: str) -> list[float]:
    """Milliseconds of every measured step without waiting for data, which is not the network's."""
    steps = run.table("steps")
    measured = choose_typical_steps(steps, find_slow_start=stage == "training").measured
    chosen = steps.filter(pl.col("step").is_in(measured))
    whole = dict(chosen.filter(pl.col("phase") == "step").select("step", "wall_ns").iter_rows())
    for step, wall_ns in chosen.filter(pl.col("phase") == "data").select("step", "wall_ns").iter_rows():
        whole[step] -= wall_ns
    return [ns / 1e6 for ns in whole.values() if ns > 0]


def _side(run: Run) -> int | None:
    """The side of a square image of as many pixels as the network worked on."""
    content = run.table("content").filter(pl.col("images") > 0)
    pixels = (content["network_pixels"] / content["images"]).drop_nulls()
    middle = pixels.median()
    return round(sqrt(float(middle))) if isinstance(middle, float) and middle > 0 else None


def _conditions(info: dict[str, Any], settings: dict[str, Any], stage: str) -> dict[str, str]:
    part = settings.get("training" if stage == "training" else "inference") or {}
    facts = info.get("environment") or {}
    cpu = facts.get("cpu") or {}
    gpus = [str(one.get("name")) for one in (facts.get("gpus") or {}).get("devices") or []]
    words = {"processor": cpu.get("model"), "cores": cpu.get("usable_cores"), "gpus": gpus}
    return {
        "device": str(info.get("device")),
        "environment": environment_words(words | {"packages": facts.get("packages")}),
        "precision": str(info.get("precision") or "fp32"),
        "threads": str((facts.get("threads") or {}).get("torch", UNKNOWN)),
        "optimizer": str(part.get("optimizer", "sgd")) if stage == "training" else "none",
        "channels_last": "yes" if part.get("channels_last") else "no",
        "num_workers": "0",  # waiting for data is not counted
        "image_size": str((settings.get("model") or {}).get("image_size") or "own"),
    }

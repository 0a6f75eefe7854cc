"""The summary of a run: everything the views show, computed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from detscope.analyze.advice import advise_on_memory, advise_on_time
from detscope.analyze.device.imported import add_device
from detscope.analyze.device.processor import telemetry_figures
from detscope.analyze.device.roofline import count_costs
from detscope.analyze.figure import Figure
from detscope.analyze.memory.account import memory_account, pass_memory
from detscope.analyze.prediction import read_predicted
from detscope.analyze.ranks.figures import add_ranks
from detscope.analyze.rerun import rerun_command
from detscope.analyze.script import script_figures
from detscope.analyze.step.content import content_figures, images_per_step, loss_figures
from detscope.analyze.step.cost_content import cost_against_content
from detscope.analyze.step.inference import (
    count_detections,
    first_step_ms,
    image_names,
    inference_stages,
    inference_verdict,
    name_outliers,
    stage_times,
    step_contents,
)
from detscope.analyze.step.loader import loader_figures
from detscope.analyze.step.modules import backward_attributed, module_figures, stage_figures
from detscope.analyze.step.operators import operator_figures
from detscope.analyze.step.overhead import measure_own_cost
from detscope.analyze.step.steps import (
    TypicalSteps,
    choose_typical_steps,
    find_outliers,
    images_per_second,
    phase_figures,
    step_figures,
    warmup_figures,
)
from detscope.analyze.verdict import training_verdict
from detscope.runs.definitions import DEFINITIONS
from detscope.runs.reader import Run, load_run

SUMMARY_SCHEMA = 1


class RunFile(Figure, frozen=True, kw_only=True):
    """Something that lies in the run's folder."""

    name: str
    path: str


class SkippedImage(Figure, frozen=True, kw_only=True):
    """An image that could not be measured."""

    file: str
    reason: str


def summarize(run: Run | str | Path) -> dict[str, Any]:
    """All figures of a run as plain data."""
    opened = run if isinstance(run, Run) else load_run(run)
    info = opened.info
    steps, spans, content = (opened.table(name) for name in ("steps", "spans", "content"))
    infers = info.get("verb") == "infer"
    typical = choose_typical_steps(steps, find_slow_start=not infers)
    phases = phase_figures(steps, typical)
    phases_ms = {phase.name: phase.ms for phase in phases}
    stages = stage_figures(spans, typical, phases_ms, info.get("stages", []))
    per_step = images_per_step(content, typical.measured)
    step_ms = step_figures(steps, typical)
    operators = info.get("operators") or {}
    summary: dict[str, Any] = {
        "schema": SUMMARY_SCHEMA,
        "run": str(opened.folder),
        "verb": info.get("verb"),
        "rerun": rerun_command(opened.folder, info),
        "status": opened.status,
        "reason": info.get("reason"),
        **{
            key: info.get(key)
            for key in ("model", "weights", "data", "device", "batch_size", "precision", "level")
        },
        "step_ms": step_ms,
        "stability": typical.steadiness,
        "outliers": find_outliers(steps, content, typical),
        "warmup": warmup_figures(steps, typical),
        "images_per_s": images_per_second(steps, content, typical),
        "phases": phases,
        "stages": stages,
        "modules": module_figures(spans, opened.table("nodes"), typical, phases_ms),
        "backward_attributed": operators.get("backward_attributed", backward_attributed(spans, typical)),
        "backward_attributed_by": "operators" if operators else "module borders",
        "operators": operator_figures(opened.table("ops"), operators.get("steps", 1)),
        "content": content_figures(content, typical.measured),
        "loss": loss_figures(opened.table("losses")),
        **_training_course(opened),
        "script": script_figures(info.get("script")),
        "loader": loader_figures(
            opened.table("loader"),
            typical,
            per_step,
            phases_ms.get("data", 0.0),
            info.get("num_workers"),
        ),
        "overhead_ratio": measure_own_cost(steps, content, opened.table("loader")),
        "telemetry": telemetry_figures(opened.table("telemetry")),
        "growth": info.get("growth"),
        "notes": _notes(info, typical.mode),
        "cannot_tell": _cannot_tell(info, steps, operators),
        "definitions": DEFINITIONS,
        "files": _files(opened.folder),
    }
    if infers:
        summary.update(_inference_figures(summary, opened, typical))
    account = memory_account(opened)
    summary["memory"] = account
    summary["verdict"] = (
        inference_verdict(summary["stages"], step_ms, summary["batch_size"])
        if infers
        else training_verdict(step_ms, phases, stages, summary["loader"])
    )
    if info.get("verb") == "eval":
        add_evaluation(summary, opened)
    add_ranks(summary, opened, typical)
    add_device(summary, opened)
    summary["modules"], summary["roofline"] = count_costs(opened, summary["modules"], phases)
    if (predicted := read_predicted(opened)) is not None:
        summary["predicted"] = predicted
    summary["advice"] = advise_on_time(summary, info.get("settings"))
    summary["advice"] += [] if account is None else advise_on_memory(opened, account)
    return summary


def _inference_figures(summary: dict[str, Any], run: Run, typical: TypicalSteps) -> dict[str, Any]:
    """What an inference has beside the figures of its steps, and in their place."""
    images, content, steps = (
        run.table("images").sort("step", "position"),
        run.table("content"),
        run.table("steps"),
    )
    on_device = run.info.get("device") != "cpu"
    per_step = stage_times(steps, run.table("spans"), typical.measured, on_device)
    measured = images.filter(pl.col("step").is_in(typical.measured))
    return {
        "images": measured["name"].n_unique() if measured.height else 0,
        "repeat": run.info.get("repeat"),
        "score": run.info.get("score"),
        "latency_ms": summary["step_ms"],
        "first_image_ms": first_step_ms(steps),
        "stages": inference_stages(
            summary["stages"], summary["phases"], summary["step_ms"], per_step, on_device
        ),
        "outliers": name_outliers(summary["outliers"], images, content, typical),
        "cost_against_content": cost_against_content(per_step, step_contents(images, content)),
        "detections": count_detections(measured),
        "pass_memory": pass_memory(run.info.get("memory")),
        "skipped": msgspec.convert(run.info.get("skipped") or [], list[SkippedImage]),
        "overhead_ratio": measure_own_cost(steps, content, alike=image_names(images)),
        **dict.fromkeys(("loss", "backward_attributed", "backward_attributed_by")),
    }


def _training_course(run: Run) -> dict[str, Any]:
    """Epoch by epoch where the run has several or evaluated; accuracy where it did."""
    accuracy = accuracy_figures(run)
    epochs = epoch_rows(run)
    found: dict[str, Any] = {} if accuracy is None else {"accuracy": accuracy}
    if run.info.get("verb") == "train" and (accuracy is not None or len(epochs) > 1):
        found["epochs"] = epochs
    for key in ("recipe", "resumed_from", "held_out"):
        if run.info.get(key):
            found[key] = run.info[key]
    return found


def _notes(info: dict[str, Any], mode: str) -> list[str]:
    notes = list(info.get("notes") or [])
    growth = info.get("growth")
    if isinstance(growth, dict) and growth.get("note"):
        notes.append(str(growth["note"]))
    if mode == "ops":
        notes.append("all measured steps ran under the operator profiler: step times include its cost")
    if mode == "warmup":
        notes.append("the run ended during its warm-up: figures are those of warm-up steps")
    return notes


def _cannot_tell(info: dict[str, Any], steps: pl.DataFrame, operators: dict[str, Any]) -> list[str]:
    reasons = list(info.get("cannot_tell") or [])  # what readers of recorded files could not know
    if steps["device_ns"].null_count() == steps.height and str(info.get("device", "")).startswith("cuda"):
        reasons.append("device times: no device marks were recorded")
    gpus = info.get("environment", {}).get("gpus", {})
    if not gpus.get("devices") and gpus.get("reason"):
        reasons.append(f"GPU telemetry: {gpus['reason']}")
    if operators.get("kernels_unlinked"):
        reasons.append(f"{operators['kernels_unlinked']} kernels without a launching operator")
    return reasons


def _files(folder: Path) -> list[RunFile]:
    named = {"trace": "trace.json.gz", "pictures": "pictures", "tensorboard": "tb", "memory": "memory.csv"}
    named["report"] = "report.html"
    return [
        RunFile(name=name, path=str(folder / file))
        for name, file in named.items()
        if (folder / file).exists()
    ]

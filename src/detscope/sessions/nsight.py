"""`--nsight`: the same command again under NVIDIA's tools, once per batch size; what they record are runs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detscope.analyze.device.nsight import NsightFigures, NsightTrialFigures, select_nsight_figures
from detscope.analyze.summary import summarize
from detscope.config.load import dump_settings
from detscope.config.schema import Settings
from detscope.errors import DetscopeError, InputError, InterruptedRun, MachineError, UsageError
from detscope.machine.programs import (
    KINDS,
    METRICS,
    NAMES,
    CommandFailed,
    Kind,
    compute_command,
    explain_failure,
    export_command,
    require_tool,
    run_tool,
    systems_command,
    unknown_metrics,
)
from detscope.record.device.nsight import ENVIRONMENT, StepWindow, parse_window
from detscope.report.progress import Progress
from detscope.report.publish import publish_run
from detscope.runs.writer import update_info

DEFAULT_WINDOWS: dict[Kind, str] = {"systems": "100:200", "compute": "1:2"}
# counting kernels runs each of them several times: minutes for a step, hours for many
TIMEOUT_S: dict[Kind, float] = {"systems": 1800.0, "compute": 7200.0}
EXPORT_TIMEOUT_S = 1800.0
_SECTIONS = {"train": "training", "infer": "inference"}


@dataclass(frozen=True)
class NsightPlan:
    """What is recorded how: the tool, its window of steps, the batch sizes in turn."""

    kind: Kind
    window: StepWindow
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True)
class NsightTrial:
    """One batch size: the run that came out, or why none did."""

    batch_size: int
    run: Path | None = None
    error: DetscopeError | None = None


def make_nsight_plan(
    kind: str, window: str | None, batch_sizes: str | None, default_batch: int
) -> NsightPlan:
    """The plan of the flags, checked."""
    known = next((name for name in KINDS if name == kind), None)
    if known is None:
        raise UsageError(f"--nsight {kind!r} is not one of {', '.join(KINDS)}", "try --nsight systems")
    sizes = [part.strip() for part in (batch_sizes or str(default_batch)).split(",") if part.strip()]
    if not sizes or not all(size.isdecimal() and 0 < int(size) < 1_000_000 for size in sizes):
        raise UsageError(
            f"--batch-sizes {batch_sizes!r} is not a list of batch sizes", "as in --batch-sizes 4,8,16"
        )
    return NsightPlan(
        known, parse_window(window or DEFAULT_WINDOWS[known]), tuple(dict.fromkeys(map(int, sizes)))
    )


def run_under_nsight(
    settings: Settings, verb: str, plan: NsightPlan, *, progress: Progress
) -> list[NsightTrial]:
    """Record every batch size, one after the other; what no batch size can have is raised at once."""
    section = getattr(settings, _SECTIONS[verb])
    if section.device == "cpu":
        raise UsageError(
            f"--nsight measures a CUDA device, and {_SECTIONS[verb]}.device is cpu", "leave --device out"
        )
    tool = require_tool(plan.kind)
    trials: list[NsightTrial] = []
    progress.start(len(plan.batch_sizes), NAMES[plan.kind])
    for batch_size in plan.batch_sizes:
        progress.note(f"{NAMES[plan.kind]}: batch size {batch_size}, steps {plan.window}")
        try:
            trials.append(_measure_batch_size(settings, verb, plan, tool, batch_size, progress))
        except KeyboardInterrupt:
            kept = [str(trial.run) for trial in trials if trial.run]
            raise InterruptedRun(
                f"interrupted at batch size {batch_size}; {len(kept)} of {len(plan.batch_sizes)} are kept",
                f"detscope show {kept[-1]}" if kept else "nothing was left running",
            ) from None
        progress.advance(1)
    if all(trial.run is None for trial in trials) and trials[0].error is not None:
        raise trials[0].error
    return trials


def _measure_batch_size(
    settings: Settings, verb: str, plan: NsightPlan, tool: Path, batch_size: int, progress: Progress
) -> NsightTrial:
    """One batch size; that it does not fit or run is its own result and not the others'."""
    with tempfile.TemporaryDirectory(prefix="detscope-nsight-") as name:
        folder = Path(name)
        own = child_settings(settings, verb, batch_size, plan.window, folder / "runs")
        config = folder / "config.toml"
        config.write_text(dump_settings(own, verb), encoding="utf-8")
        command = [sys.executable, "-m", "detscope", verb, "--config", str(config), "--quiet"]
        about = {
            "nsight": {"tool": plan.kind, "window": str(plan.window), "verb": verb},
            "batch_size": batch_size,
            "precision": getattr(settings, _SECTIONS[verb]).precision,
        }
        try:
            recorded = (
                _record_systems(tool, folder, command, plan)
                if plan.kind == "systems"
                else _record_compute(tool, folder, command, plan, progress)
            )
            run = keep_recording(recorded, Path(settings.output.runs), settings.model.name, about)
        except (CommandFailed, InputError) as error:
            progress.note(f"batch size {batch_size}: {error.message}")
            return NsightTrial(batch_size, error=error)
    return NsightTrial(batch_size, run=run)


def child_settings(
    settings: Settings, verb: str, batch_size: int, window: StepWindow, runs: Path
) -> Settings:
    """The same work with as little listening as possible, on CUDA, for long enough."""
    section = _SECTIONS[verb]
    old = getattr(settings, section)
    changes: dict[str, Any] = {
        "batch_size": batch_size,
        "device": "cuda" if old.device == "auto" else old.device,
        "warmup_steps": 0,
        # one more than the window needs: its end is the border to the next step, and the command ends there
        "steps": window.end + 1,
        "repeat": window.end + 1,
        "checkpoints": False,
        "tensorboard": False,
    }
    quiet: dict[str, Any] = {
        "level": "phases",
        "bare_every": 0,
        "telemetry_hz": 0.0,
        "traced_steps": 0,
        "memory": False,
    }
    return (
        settings.with_section(section, **_select_known(old, changes))
        .with_section("record", **_select_known(settings.record, quiet))
        .with_section("output", runs=str(runs))
    )


def _select_known(section: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """Changes of keys that the section has: training and inference differ."""
    return {key: value for key, value in changes.items() if key in type(section).model_fields}


def _record_systems(nsys: Path, folder: Path, command: Sequence[str], plan: NsightPlan) -> Path:
    report, database = folder / "systems", folder / "systems.sqlite"
    code, said = _run_tool(systems_command(nsys, report, command), folder, plan, TIMEOUT_S["systems"])
    if error := explain_failure("systems", code, said):
        raise error
    reports = sorted(folder.glob("systems.nsys-rep")) or sorted(folder.glob("systems.qdrep"))
    if not reports:
        raise MachineError(
            "nsys left no report: the window was never reached", "give a --window with fewer steps before it"
        )
    code, said = _run_tool(export_command(nsys, reports[0], database), folder, plan, EXPORT_TIMEOUT_S)
    if (error := explain_failure("systems", code, said)) or not database.is_file():
        raise error or MachineError("nsys export wrote no SQLite file", "update Nsight Systems")
    return database


def _record_compute(
    ncu: Path, folder: Path, command: Sequence[str], plan: NsightPlan, progress: Progress
) -> Path:
    listing, asked = folder / "compute.csv", list(METRICS)
    while True:
        listing.unlink(missing_ok=True)
        line = compute_command(ncu, listing, asked, command)
        code, said = _run_tool(line, folder, plan, TIMEOUT_S["compute"])
        if listing.is_file():
            with listing.open(encoding="utf-8", errors="replace") as file:
                said += "\n" + file.read(200_000)
        missing = unknown_metrics(said, asked) if code else []
        if not missing or len(missing) == len(asked):
            break
        progress.note(f"this device or ncu has no {', '.join(missing)}: recorded without")
        asked = [metric for metric in asked if metric not in missing]
    if error := explain_failure("compute", code, said):
        raise error
    if not listing.is_file():
        raise MachineError("ncu wrote no listing", "update Nsight Compute; --log-file is needed")
    if "No kernels were profiled" in said:
        raise CommandFailed("no kernel ran within the window", "give a --window that the steps reach")
    return listing


def _run_tool(line: Sequence[str], folder: Path, plan: NsightPlan, timeout_s: float) -> tuple[int, str]:
    return run_tool(line, folder / "log.txt", timeout_s, {ENVIRONMENT: str(plan.window)})


def keep_recording(file: Path, parent: Path, model: str, about: Mapping[str, Any]) -> Path:
    """Read a recorded file into a run of its own, and say there how it was recorded."""
    from detscope.ingest.recordings import read_file, write_run
    from detscope.machine.facts import gather_facts

    run = write_run([read_file(file)], parent, model)
    update_info(run, {**about, "environment": gather_facts()})
    publish_run(run)
    return run


def gather_nsight_figures(plan: NsightPlan, trials: Sequence[NsightTrial]) -> NsightFigures:
    """One row per batch size: the figures that the tools are asked for, or why there are none."""
    rows = []
    for trial in trials:
        if trial.run is None:
            why = trial.error.message if trial.error else "nothing was recorded"
            rows.append(NsightTrialFigures(batch_size=trial.batch_size, status="failed", why=why))
            continue
        summary = summarize(trial.run)
        use, run = summary.device_use, str(trial.run)
        rows.append(select_nsight_figures(trial.batch_size, run, summary.status, use))
    return NsightFigures(nsight=plan.kind, window=str(plan.window), batch_sizes=tuple(rows))

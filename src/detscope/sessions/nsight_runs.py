"""What NVIDIA's tools recorded under `--nsight`, as runs; and the rows of the table over batch sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.analyze.summary import summarize
from detscope.ingest.recordings import read_file, write_run
from detscope.machine.facts import environment
from detscope.runs.atomic import write_text

if TYPE_CHECKING:
    from detscope.sessions.nsight import NsightTrial


def keep_recording(file: Path, parent: Path, model: str, about: Mapping[str, Any]) -> Path:
    """Read a recorded file into a run of its own, and say there how it was recorded."""
    run = write_run([read_file(file)], parent, model)
    path = run / "run.json"
    info = {**json.loads(path.read_text(encoding="utf-8")), **about, "environment": environment()}
    write_text(path, json.dumps(info, indent=1, allow_nan=False) + "\n")
    return run


def make_trial_rows(trials: Sequence[NsightTrial]) -> list[dict[str, Any]]:
    """One row per batch size: the figures that the tools are asked for, or why there are none."""
    rows: list[dict[str, Any]] = []
    for trial in trials:
        row: dict[str, Any] = {"batch_size": trial.batch_size}
        if trial.run is None:
            why = trial.error.message if trial.error else "nothing was recorded"
            rows.append({**row, "run": None, "status": "failed", "why": why})
            continue
        summary = summarize(trial.run)
        device = summary["device"] if isinstance(summary.get("device"), Mapping) else {}
        rows.append({**row, "run": str(trial.run), "status": summary["status"], **_figures(device)})
    return rows


def _figures(device: Mapping[str, Any]) -> dict[str, Any]:
    use = device.get("utilisation") or {}
    cores = device.get("cores") or {}
    return {
        "steps": device.get("steps"),
        "utilisation": {
            key: use.get(key)
            for key in ("kernels", "with_copies", "kernels_ns", "window_ns", "with_copies_ns", "window")
        },
        "kernels": cores.get("kernels"),
        "cycles": cores.get("cycles"),
        "pipes": cores.get("pipes") or {},
        "counters": cores.get("counters") or {},
        "definition": cores.get("definition"),
    }

"""The same script twice: under `detscope run`, and recorded by its trainer's callback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl

from detscope.analyze.device.processor import PREFIX, SOURCE
from detscope.analyze.stats import median_interval
from detscope.analyze.step.steps import PHASES
from detscope.analyze.summary import summarize
from detscope.runs.reader import Run, load_run
from detscope.runs.standard_json import as_standard_json
from named_rows import by_name

EXAMPLES = Path(__file__).parents[1] / "examples"
NOISE = 0.03  # of the step: as far apart may intervals of a phase's share be
_OFFLINE = {"HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "false"}
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # several spin while they wait for each other


def start(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Python with this command in this folder, which must end well."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, **_OFFLINE, **_ONE_THREAD, "YOLO_CONFIG_DIR": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join([str(EXAMPLES), *sys.path])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done


def check_callback_gives_the_same_run(folder: Path, script: Path, *arguments: str) -> dict[str, Any]:
    """The script records itself when its last argument is `callback`; the figures of that."""
    start(folder / "run", "-m", "detscope", "run", "-q", str(script), *arguments)
    start(folder / "callback", str(script), *arguments, "callback")
    runs = [load_run(folder / name / "runs" / "latest") for name in ("run", "callback")]
    modes = [run.table("steps")["mode"].value_counts(sort=True).to_dicts() for run in runs]
    assert modes[0] == modes[1]
    contents = [run.table("content").select("step", "images", "boxes", "pixels").rows() for run in runs]
    assert contents[0] == contents[1]
    one, other = (as_standard_json(summarize(run)) for run in runs)
    for key in ("status", "batch_size", "precision", "level"):
        assert one[key] == other[key], key
    assert one["images_per_s"] > 0 < other["images_per_s"]
    for key in ("optimizers", "optimizer_steps", "batches_per_step"):
        assert one["script"][key] == other["script"][key], key
    steps = [by_name(each["script"]["parts"], "steps") for each in (one, other)]
    assert steps[0] == steps[1]
    assert (one["model"]["name"], one["model"]["family"]) == (
        other["model"]["name"],
        other["model"]["family"],
    )
    stages = [by_name(each["stages"], "total_ms").keys() for each in (one, other)]
    assert stages[0] == stages[1]
    shares = [measure_shares(run) for run in runs]
    for phase, (low, high) in shares[0].items():
        assert low <= shares[1][phase][1] + NOISE, (phase, *shares)
        assert high >= shares[1][phase][0] - NOISE, (phase, *shares)
    return dict(other)


def measure_shares(run: Run) -> dict[str, tuple[float, float]]:
    """Of every phase, its median share of the recorded steps, as an interval of 95 %.

    Of the processor time: what others take from the process is no part of it.
    """
    recorded = run.table("steps").filter(pl.col("mode") == "recorded")
    used = run.table("telemetry").filter(pl.col("source") == SOURCE)
    used = used.select("value", start_ns="time_ns", phase=pl.col("metric").str.strip_prefix(PREFIX))
    whole = used.filter(pl.col("phase") == "step").select("start_ns", whole="value")
    steps = recorded.join(used, on=["start_ns", "phase"], how="left").join(whole, on="start_ns")
    shares = steps.with_columns(share=pl.col("value").fill_null(0.0) / pl.col("whole"))
    found = {}
    for phase in PHASES:
        ends = median_interval(shares.filter(pl.col("phase") == phase)["share"].to_list())
        assert ends is not None, "too few steps"
        found[phase] = (ends.low, ends.high)
    return found

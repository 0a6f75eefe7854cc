"""`detscope try` on planted scripts: patches that help, change results or do nothing, beside a plain clock.

The plain measurement knows nothing of detscope: whole processes of the script with few and with many steps,
without and with the patch, by turns; the difference of the two lengths is the time of the steps between.
`--pairs=N` rounds of it, `--nothing=N` tries of a patch that does nothing; `--at-once`: one of them on every
core.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.sidebyside import pin_to, run_at_once
from detscope.analyze.compare.change import RatioSpread, Sample, compare_samples
from detscope.sessions.trying.copies import Patch
from detscope.sessions.trying.patches import apply_patch

PLANTED = Path(__file__).parents[1] / "tests" / "planted_defects"
HELPFUL = {"slow_ema": 1005, "padding": 205}  # steps by the clock: seconds of them, beside a start of three
FEW, RECORDED = 5, 205
PAIRS, NOTHING = 6, 20
NOTHING_STEPS = 65  # where nothing changes: processes differ by other things than their steps


def _read_count(name: str, usual: int) -> int:
    return next((int(word.partition("=")[2]) for word in sys.argv if word.startswith(f"{name}=")), usual)


def make_project(folder: Path) -> Path:
    """The scripts without a repository around them, and each patched by its side."""
    folder.mkdir(parents=True)
    for name in HELPFUL:
        shutil.copy(PLANTED / f"{name}.py", folder)
        (file,) = Patch.of_file(PLANTED / f"{name}.patch").files
        text = (PLANTED / f"{name}.py").read_text(encoding="utf-8")
        (folder / f"{name}_patched.py").write_text(apply_patch(text, file, name), encoding="utf-8")
    return folder


def time_steps(script: Path, many: int) -> float:
    """Seconds of the steps between few and many, by the clock on the wall around whole processes."""
    seconds = []
    for steps in (FEW, many):
        begin = time.perf_counter()
        subprocess.run([sys.executable, str(script), "--steps", str(steps)], check=True)
        seconds.append(time.perf_counter() - begin)
    return seconds[1] - seconds[0]


def measure_plainly(project: Path, name: str, pairs: int) -> tuple[float, float, float]:
    """The gain without detscope, with its 95 % interval."""
    sides: tuple[list[Sample], list[Sample]] = ([], [])
    for number in range(pairs):
        order = ((0, name), (1, f"{name}_patched"))
        for side, script in order if number % 2 == 0 else reversed(order):
            sides[side].append(Sample(max(1e-6, time_steps(project / f"{script}.py", HELPFUL[name]))))
    change = compare_samples(*sides, RatioSpread(0.0, 1.0))
    low, high = change.relative_ci95 or (float("nan"), float("nan"))
    return -(change.relative or 0.0), -high, -low


def detscope(project: Path, *words: str, core: int | None = None) -> subprocess.CompletedProcess[str]:
    """A command of ours in the project."""
    command = [*pin_to(core), sys.executable, "-m", "detscope", *words]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


def record_script(project: Path, name: str, steps: int, out: str) -> None:
    """A run to try changes on."""
    detscope(project, "run", "--level", "phases", "--out", out, f"{name}.py", "--steps", str(steps))


def try_patch(project: Path, out: str, patch: str, core: int | None = None) -> dict[str, Any]:
    """What one try says of the run in this folder."""
    run = next((project / out).glob("*-run-*"))
    words = [
        "--patch",
        str(PLANTED / f"{patch}.patch"),
        "--budget",
        "30m",
        "--json",
        "--out",
        f"tried-{out}{'' if core is None else core}",
    ]
    done = detscope(project, "try", str(run), *words, core=core)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _tell(told: dict[str, Any]) -> str:
    spent = f"{told['time']['pairs']} pairs, {told['spent_s']:.0f} s"
    ends = told["time"]["gain_ci95"]
    gain = f"{told['time']['gain']:+.1%} [{ends[0]:+.1%}, {ends[1]:+.1%}]"
    return f"{told['verdict']:9} {gain:32} {spent:18} {told['why']}"


def main() -> None:
    """Print verdicts beside the plain clock, and how often a patch that does nothing was accepted."""
    cores, busy = psutil.cpu_count(), psutil.cpu_percent(2.0)
    print(f"try: {cores} cores, {busy:.0f} % busy before the first process", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        project = make_project(Path(folder) / "project")
        for name in HELPFUL:
            record_script(project, name, RECORDED, name)
        record_script(project, "padding", NOTHING_STEPS, "short")
        for name in HELPFUL:
            told = try_patch(project, name, name)
            gain, low, high = measure_plainly(project, name, _read_count("--pairs", PAIRS))
            ends = told["time"]["gain_ci95"]
            inside = ends[0] <= gain <= ends[1] or low <= told["time"]["gain"] <= high
            agree = "agree" if inside else "each gain lies OUTSIDE of the other's interval"
            print(f"  {name:14} {_tell(told)}", flush=True)
            print(f"  {'by the clock':14} {'':9} {gain:+.1%} [{low:+.1%}, {high:+.1%}]: {agree}", flush=True)
        print(f"  {'other results':14} {_tell(try_patch(project, 'padding', 'other_results'))}", flush=True)
        verdicts: list[str] = []
        lanes = len(os.sched_getaffinity(0)) if "--at-once" in sys.argv else 1
        nothing = partial(try_patch, project, "short", "nothing")
        while (left := _read_count("--nothing", NOTHING) - len(verdicts)) > 0:
            found = [nothing()] if lanes == 1 else run_at_once([nothing] * min(lanes, left), 0)
            for told in found:
                verdicts.append(told["verdict"])
                print(f"  nothing, {len(verdicts):2}    {_tell(told)}", flush=True)
        counted = dict(zip(*np.unique(verdicts, return_counts=True), strict=True)) if verdicts else {}
        words = ", ".join(f"{verdict} {count}" for verdict, count in counted.items())
        print(f"  a patch that does nothing, {len(verdicts)} tries: {words}")

"""`compare` on real runs, each in a fresh process: false alarms of equal runs, planted changes found.

Equal runs of two models, each compared with the one before it; then 5 ms planted in one module, one run each;
then 2 % planted in the step, by `--repeat`. What is assumed about processes (`analyze/compare/variation.py`)
is chosen on the first half of the equal pairs and scored on the second half: both are printed.
`--pairs=N`, `--planted=N`, `--repeats=N` and `--tuned=0` make it shorter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from detscope.analyze.compare.figures import RunFigures, read_figures
from detscope.analyze.compare.sides import RunComparison, compare_sides
from detscope.analyze.compare.variation import MachineVariation
from detscope.runs.folder import find_run
from detscope.runs.reader import load_run

PLANTED = Path(__file__).parents[1] / "tests" / "sessions" / "planted.py"
MODELS = (f"{PLANTED}:detector", "tiny_ssd")
PAIRS, FOUND, REPEATED = 40, 10, 10
STEPS, ROUNDS, SHARE = 24, 32, 0.02
SETTINGS = ("data.images=16", "data.image_width=160", "data.image_height=128")
SETTINGS += ("record.traced_steps=0", "training.threads=1")
NOTHING = MachineVariation(machine="")  # nothing was learnt: what is assumed has to do
SLOWER = '''"""The same detector, {share:.0%} slower: it sleeps in the box head."""

import sys
import time

sys.path.insert(0, {folder!r})
from planted import detector


def slower(num_classes: int = 2):
    """`slower.py:slower`."""
    model = detector(num_classes)
    head = model.roi_heads.box_head

    class Slower(type(head)):
        def forward(self, *args):
            time.sleep({seconds!r})
            return super().forward(*args)

    head.__class__ = Slower
    return model
'''


def train_command(model: str) -> list[str]:
    """What a person types, with few threads and images."""
    words = ["train", model, "--steps", str(STEPS), "--num-workers", "0", "-q"]
    for setting in SETTINGS:
        words += ["--set", setting]
    return words


def record_run(model: str, out: Path) -> RunFigures:
    """One run in a fresh process."""
    command = [sys.executable, "-m", "detscope", *train_command(model), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return read_figures(load_run(find_run("latest", out)))


def list_told(one: RunComparison) -> list[str]:
    """Stages and modules that the comparison names."""
    return [row.row_label for row in (*one.stages, *one.modules) if row.is_seen]


def score_pairs(runs: Sequence[RunFigures], label: str) -> None:
    """How many pairs of equal runs were told apart."""
    found = [compare_sides([first], [second], NOTHING) for first, second in pairwise(runs)]
    for half, part in (("first half (chosen on)", found[::2]), ("second half (scored)", found[1::2])):
        steps = sum(one.step.is_seen for one in part)
        parts = [list_told(one) for one in part]
        named = sum(bool(told) for told in parts)
        hidden = sorted(one.step.resolution or 0.0 for one in part)
        middle = hidden[len(hidden) // 2] if hidden else 0.0
        print(
            f"  {label}, {half}: of {len(part)} pairs {steps} differ in the step, {named} in a stage or"
            f" module; a change below {middle:.1%} (median) is not told"
        )
        for told in parts:
            if told:
                print(f"    named: {', '.join(told)}")


def find_planted(base: Sequence[RunFigures], count: int, out: Path) -> None:
    """5 ms in the box head: how often it is the first module that is named."""
    first = 0
    for number in range(count):
        later = record_run(f"{PLANTED}:sleepy", out)
        told = list_told(compare_sides([base[number % len(base)]], [later], NOTHING))
        first += any("box_head" in name for name in told)
        print(f"  planted 5 ms, {number + 1}: {', '.join(told) or 'nothing named'}")
    print(f"  planted 5 ms in roi_heads.box_head: named in {first} of {count}")


def find_share(base: Sequence[RunFigures], count: int, out: Path) -> None:
    """2 % of the step in the box head, by `compare --repeat`."""
    step_ms = sorted(one.step_ms for one in base)[len(base) // 2]
    module = out / "slower.py"
    seconds = SHARE * step_ms / 1e3
    module.write_text(SLOWER.format(share=SHARE, folder=str(PLANTED.parent), seconds=seconds))
    found = 0
    for number in range(count):
        command = [sys.executable, "-m", "detscope", "compare", "--repeat", str(ROUNDS), "--json", "--"]
        command += ["detscope", *train_command(MODELS[0]), "--"]
        command += ["detscope", *train_command(f"{module}:slower")]
        done = subprocess.run(command, cwd=out, capture_output=True, check=True)
        step: dict[str, Any] = json.loads(done.stdout)["comparisons"][0]["step"]
        found += step["verdict"] == "slower"
        low, high = step["relative_ci95"]
        ends = f"{step['relative']:+.1%} [{low:+.1%}, {high:+.1%}]"
        print(
            f"  planted {SHARE:.0%}, {number + 1}: {step['verdict']}, {ends} after {step['runs'][0]} rounds"
        )
    print(f"  planted {SHARE:.0%} with --repeat {ROUNDS}: found in {found} of {count}")


def try_tuning(out: Path) -> None:
    """A slow data set: what tuning promised, and what it measured."""
    sys.path.insert(0, str(PLANTED.parents[1]))
    from detscope.config.schema import Settings
    from detscope.report.progress import QuietProgress
    from detscope.sessions.tune import run_tuning
    from slow_disk import install_slow_disk

    path = [str(install_slow_disk(out / "installed")), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)  # of the processes that are tried
    settings = Settings.model_validate(
        {
            "model": {"name": "tiny_ssd"},
            "data": {"name": "slow", "images": 16, "root": str(out / "data")},
            "training": {"steps": 16, "threads": 1, "num_workers": 0},
            "output": {"runs": str(out)},
        }
    )
    for row in run_tuning(settings, budget_s=120, progress=QuietProgress()).tried:
        gains = [row.estimated_gain, row.time.gain if row.time else None]
        shown = ["n/a" if gain is None else f"{gain:.1%}" for gain in gains]
        print(f"  tune, slow data set: {row.title}: estimated {shown[0]}, measured {shown[1]}, {row.verdict}")


def _read_count(name: str, usual: int) -> int:
    return next((int(word.partition("=")[2]) for word in sys.argv if word.startswith(f"{name}=")), usual)


def main() -> None:
    """Print how often equal runs were told apart, and how often what was planted was found."""
    pairs = _read_count("--pairs", PAIRS)
    print(f"compare: {psutil.cpu_count()} cores, {psutil.cpu_percent(2.0):.0f} % busy before the first run")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        runs: dict[str, list[RunFigures]] = {model: [] for model in MODELS}
        for _ in range(pairs // len(MODELS) + 1):  # in turns, so that what drifts meets both
            for model, found in runs.items():
                found.append(record_run(model, out / "equal"))
        for model, found in runs.items():
            score_pairs(found, model.rpartition(":")[2])
        find_planted(runs[MODELS[0]], _read_count("--planted", FOUND), out / "planted")
        find_share(runs[MODELS[0]], _read_count("--repeats", REPEATED), out)
        if _read_count("--tuned", 1):
            try_tuning(out / "tuned")

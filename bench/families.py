"""What comes out for the detectors people use, in the trainers they use: one row for each.

Every script runs plain and under `detscope run`, in turns, in processes of their own; it clocks its steps
itself. Needs the environment of `make test-families`; what is not installed is left out and named.
`--at-once` runs both at the same time, each on a core and with a thread of its own, which they swap.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.families.generated_data import write_coco_set, write_yolo_set

from bench.family_scripts import CASES, FamilyCase
from bench.sidebyside import Ratio, pin_to, ratio, run_at_once

PAIRS = 8  # processes of the same work differ by 2 %: where their memory lies is luck
STEPS = 72  # of a training
PREDICTED = 5  # times as many predictions: they are short, and the first six are recorded one after the other
SKIPPED = 4  # warm-up
REST_AIM = {"train": 0.03, "predict": 0.05}
LARGE = 0.5  # share of a step from which on a stage has to have parts
COST_AIM, COST_END_AIM = 1.03, 1.06
STEADY = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**30)}
OFFLINE = {"HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
REST = "(rest of the model)"


@dataclass(frozen=True)
class FamilyRow:
    """What one kind of script showed."""

    steps_right: bool
    rest: float | None  # share of the step
    bare_stages: tuple[str, ...]  # without parts, more than half of the step, and more than one module
    backward: float | None  # attributed
    images_per_s: float | None
    cost: Ratio | None  # recorded / plain
    stages: tuple[tuple[str, float], ...]  # the outermost, with their shares

    def find_misses(self, way: str) -> list[str]:
        """What falls short of the aims."""
        missed = [] if self.steps_right else ["steps"]
        missed += ["rest"] if self.rest is None or self.rest > REST_AIM[way] else []
        missed += [f"{name} without parts" for name in self.bare_stages]
        if way == "train":
            missed += ["backward"] if self.backward is None or self.backward < 0.99 else []
            missed += ["images/s"] if self.images_per_s is None else []
        if self.cost is not None and (self.cost.value > COST_AIM or self.cost.high > COST_END_AIM):
            missed.append("cost")
        return missed


def _run_once(
    case: FamilyCase,
    way: str,
    recorded: bool,
    data: Path,
    steps: int,
    core: int | None = None,
    meeting: str | None = None,
) -> tuple[list[float], Any]:
    folder = data.parent / ("recorded" if recorded else "plain")
    folder.mkdir(exist_ok=True)
    times, figures = folder / "times.json", folder / "figures.json"
    script = folder / f"{way}.py"
    script.write_text(case.train if way == "train" else case.predict)
    words = [str(script), str(times), str(steps), str(data), case.name]
    before = ["-m", "detscope", "run", "-q", "--json", str(figures)] if recorded else []
    subprocess.run(
        [*pin_to(core), sys.executable, *before, *words],
        cwd=folder,
        check=True,
        env=os.environ | OFFLINE | STEADY | ({} if meeting is None else {"MEETING": meeting}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    return json.loads(times.read_text()), json.loads(figures.read_text()) if recorded else None


def find_bare_stages(figures: dict[str, Any]) -> tuple[str, ...]:
    """Stages above half of the step that have no parts and are more than one module."""
    names = [stage["name"] for stage in figures["stages"]]
    found = []
    for stage in figures["stages"]:
        name = stage["name"]
        has_parts = any(other.startswith(f"{name}.") for other in names)
        modules = [one for one in figures["modules"] if one["stage"] == name and one["kind"] == "module"]
        if stage["share"] > LARGE and not has_parts and len(modules) != 1:
            found.append(name)
    return tuple(found)


def _run_pair(
    case: FamilyCase, way: str, data: Path, steps: int, number: int, at_once: bool
) -> dict[bool, tuple[list[float], Any]]:
    """Plain and recorded: in turns, or each on a core of its own."""
    order = (False, True) if number % 2 else (True, False)
    works = [partial(_run_once, case, way, recorded, data, steps) for recorded in order]
    if not at_once:
        found = [work() for work in works]
    else:
        with tempfile.TemporaryDirectory() as meeting:
            found = run_at_once([partial(work, meeting=meeting) for work in works], 0)
    return dict(zip(order, found, strict=True))


def measure_family(
    case: FamilyCase, way: str, data: Path, pairs: int, steps: int, at_once: bool = False
) -> FamilyRow:
    """Every pair clocked by the scripts; the figures are those of the last recorded process."""
    _run_once(case, way, False, data, SKIPPED)  # file caches, compiled Python files, caches of data sets
    seconds: dict[str, list[float]] = {"plain": [], "recorded": []}
    figures: dict[str, Any] = {}
    taken = 0
    for number in range(pairs):
        seen = _run_pair(case, way, data, steps, number, at_once)
        for recorded, (times, found) in seen.items():
            kept = [
                after - before for before, after in zip(times[SKIPPED:], times[SKIPPED + 1 :], strict=False)
            ]
            seconds["recorded" if recorded else "plain"].append(sum(kept) / len(kept))
            if recorded:
                figures, taken = found, len(times)
    wanted = "training" if way == "train" else "evaluation"
    told = next(part["steps"] for part in figures["script"]["parts"] if part["name"] == wanted)
    shares = {stage["name"]: stage["share"] for stage in figures["stages"] if not stage["depth"]}
    return FamilyRow(
        steps_right=abs(told - taken) <= (way == "predict"),  # a predictor may warm its model up
        rest=shares.get(REST, 0.0) if shares else None,
        bare_stages=find_bare_stages(figures),
        backward=figures["backward_attributed"],
        images_per_s=figures["images_per_s"],
        cost=ratio(seconds, "recorded", "plain"),
        stages=tuple(sorted(shares.items(), key=lambda one: -one[1])),
    )


def main() -> None:
    """The table; `--only=yolo,detr` takes cases by a part of their name, `--pairs=1 --steps=24` less."""
    options = dict(word[2:].partition("=")[::2] for word in sys.argv[1:] if word.startswith("--"))
    pairs, steps = int(options.get("pairs", PAIRS)), int(options.get("steps", STEPS))
    only = [word for word in options.get("only", "").split(",") if word]
    print("\nthe detectors people use, in their trainers: (rest), backward, speed and cost of recording")
    missed: list[str] = []
    names = {case.name for case in CASES}  # a whole one takes that one
    for case in CASES:
        if only and not (case.name in only or any(word in case.name for word in only if word not in names)):
            continue
        if find_spec(case.library) is None:
            print(f"  {case.name}: not tried, {case.library} is not installed")
            continue
        for way in ("train", "predict") if case.predict else ("train",):
            with tempfile.TemporaryDirectory() as text:
                data = Path(text) / "data"
                if case.data:
                    (write_yolo_set if case.data == "yolo" else write_coco_set)(data, train=24)
                try:
                    count = steps if way == "train" else PREDICTED * steps
                    row = measure_family(case, way, data, pairs, count, "at-once" in options)
                except subprocess.CalledProcessError as error:
                    print(f"  {case.name}, {way}: FAILED\n{error.stderr[-1500:]}")
                    missed.append(f"{case.name} {way}")
                    continue
            misses = row.find_misses(way)
            missed += [f"{case.name} {way}: {', '.join(misses)}"] if misses else []
            print(f"  {case.name} ({case.trainer}), {way}: {', '.join(misses) or 'holds'}")
            rest = "none" if row.rest is None else f"{row.rest:.1%}"
            back = "" if row.backward is None else f", backward {row.backward:.2%} attributed"
            speed = "cannot tell" if row.images_per_s is None else f"{row.images_per_s:.1f}"
            right = "right" if row.steps_right else "WRONG"
            print(f"    steps {right}, (rest) {rest}{back}, images/s {speed}, recorded / plain {row.cost}")
            print("    " + ", ".join(f"{name} {share:.0%}" for name, share in row.stages[:9]), flush=True)
    print(f"missed: {len(missed)}" + "".join(f"\n  {line}" for line in missed))

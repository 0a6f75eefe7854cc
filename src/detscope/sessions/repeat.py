"""`detscope compare --repeat`: two commands again and again, in fresh processes, until the interval decides.

Commands take turns in random order, so that what drifts meets both. The risk is spent over the looks
(`analyze/compare/looks.py`). What the processes of one side differ by is kept for later comparisons of one
run each.
"""

from __future__ import annotations

import random
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePath

import msgspec

from detscope.analyze.compare.change import Sample, measure_inside
from detscope.analyze.compare.figures import RunFigures, Samples, read_figures
from detscope.analyze.compare.looks import RiskSpender
from detscope.analyze.compare.sides import SMALLEST_SHARE, RunComparison, compare_sides
from detscope.analyze.compare.variation import (
    FILE_NAME,
    Group,
    LearntFigure,
    MachineVariation,
    find_variation,
    keep_variation,
    learn_variation,
    measure_figure,
)
from detscope.errors import UsageError
from detscope.report.progress import Progress
from detscope.sessions.trying.processes import record_once

LEAST_ROUNDS = 3  # before the first look
TOO_BUSY = 0.2  # of the cores, used by others: what is seen then is not the machine's own variation
EQUAL = 0.01  # an interval inside of +-1 % decides as well
MEASURING = ("train", "infer", "eval", "run", "import")
EXAMPLE = "detscope compare --repeat 5 -- detscope train A -- detscope train B"


@dataclass(frozen=True)
class RepeatRequest:
    """Two commands, how often at most, and how long at most."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    rounds: int
    budget_s: float | None = None
    runs: Path = Path("runs")
    seed: int | None = None  # of the order; None: another one each time


def split_commands(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two commands with `--` between them."""
    place = list(words).index("--") if "--" in words else 0
    first, second = tuple(words[:place]), tuple(words[place + 1 :])
    if not first or not second or "--" in second:
        raise UsageError("--repeat needs two commands, each behind a --", EXAMPLE)
    return first, second


def place_output(command: Sequence[str], out: Path) -> list[str]:
    """The command with its runs in a folder of ours; a script of the user is recorded by `run`."""
    words = list(command)
    named = [index for index, word in enumerate(words) if PurePath(word).name == "detscope"]
    if not named:
        script = words[1:] if PurePath(words[0]).name.startswith("python") else words
        words, named = ["detscope", "run", *script], [0]
    verb = named[0] + 1
    if verb >= len(words) or words[verb] not in MEASURING:
        raise UsageError(
            f"{shlex.join(command)!r} records nothing", f"verbs that do: {', '.join(MEASURING)}; {EXAMPLE}"
        )
    options = words[verb + 1 :]
    if words[verb] != "run" and any(word == "--out" or word.startswith("--out=") for word in options):
        raise UsageError("--repeat decides where runs go", "leave --out out of the commands")
    words[verb + 1 : verb + 1] = ["--out", str(out)]
    if words[0] == "detscope" and shutil.which("detscope") is None:
        words[:1] = [sys.executable, "-m", "detscope"]
    return words


@dataclass
class _Side:
    """One command and what it has recorded."""

    command: list[str]
    folder: Path
    figures: list[RunFigures] = field(default_factory=list)

    def run_once(self, log: Path) -> None:
        """Record the command in a fresh process."""
        self.figures.append(read_figures(record_once(self.command, self.folder, log)))


def repeat_commands(request: RepeatRequest, progress: Progress) -> RunComparison:
    """Run both commands in turns until the interval of the step decides, or rounds or time are used up."""
    if request.rounds < 2:
        raise UsageError(f"--repeat {request.rounds}: a side needs two runs at least", EXAMPLE)
    folder = request.runs / f"compare-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}"
    sides = [
        _Side(place_output(command, folder / name), folder / name)
        for name, command in (("before", request.before), ("after", request.after))
    ]
    for side in sides:
        side.folder.mkdir(parents=True, exist_ok=True)
    order, begin_s = random.Random(request.seed), time.monotonic()
    progress.start(request.rounds, "rounds")
    known, looks, number = MachineVariation(machine=""), RiskSpender(request.rounds), 0
    try:
        while True:
            number += 1
            for side in order.sample(sides, 2):
                side.run_once(folder / "output.txt")
            progress.advance()
            known = find_variation(sides[0].figures[0].run)
            is_last = number >= request.rounds or _is_time_up(request.budget_s, begin_s, number)
            if not is_last and number < LEAST_ROUNDS:
                continue
            risk = looks.take_look(number, is_last)
            found = compare_sides(sides[0].figures, sides[1].figures, known, risk)
            if is_last or _decides(found):
                break
    finally:
        progress.finish()
    notes = [_tell_end(found, number, request.rounds)]
    others = max((one.others_share or 0.0 for side in sides for one in side.figures), default=0.0)
    if others < TOO_BUSY:
        _learn(known, [side.figures for side in sides], request.runs / FILE_NAME)
    else:
        notes.append(f"nothing was learnt about this machine: other processes used {others:.0%} of the cores")
    for note in notes:
        progress.note(note)
    return msgspec.structs.replace(found, notes=[*found.notes, *notes])


def _is_time_up(budget_s: float | None, begin_s: float, rounds: int) -> bool:
    """Whether another round like those before would end too late; two are the least."""
    if budget_s is None or rounds < 2:
        return False
    spent_s = time.monotonic() - begin_s
    return spent_s + spent_s / rounds > budget_s


def _decides(found: RunComparison) -> bool:
    ends = found.step.relative_ci95
    return ends is not None and (ends[0] > 0 or ends[1] < 0 or max(map(abs, ends)) <= EQUAL)


def _tell_end(found: RunComparison, number: int, most: int) -> str:
    if _decides(found):
        return f"decided after {number} of at most {most} rounds"
    return f"not decided after {number} rounds"


def _learn(known: MachineVariation, sides: Sequence[Sequence[RunFigures]], path: Path) -> None:
    """Keep what the processes of each side differ by."""
    runs = [one for side in sides for one in side]
    spreads = [one.series.steadiness.spread or 0.0 for one in runs if one.series.steadiness]
    tables: dict[Group, Callable[[RunFigures], Samples]] = {
        "step": lambda one: {"step": one.p50} if one.p50 else {},
        "phase": lambda one: one.phases,
        "stage": lambda one: one.stages,
        "module": lambda one: one.modules,
        "operator": lambda one: one.operators,
        "kernel": lambda one: one.kernels,
        "memory": lambda one: {"process": one.memory["process"]} if "process" in one.memory else {},
    }
    learnt: dict[Group, list[LearntFigure]] = {}
    for group, table in tables.items():
        for name in dict.fromkeys(name for one in runs for name in table(one)):
            found = [[table(one)[name] for one in side if name in table(one)] for side in sides]
            if _is_too_small(group, found, runs):
                continue
            inside = [measure_inside(sample) for side in found for sample in side]
            row = measure_figure(group, found, spreads, inside)
            if row is not None:
                learnt.setdefault(group, []).append(row)
    processor = ((runs[0].run.info.get("environment") or {}).get("cpu") or {}).get("model")
    keep_variation(path, learn_variation(known, learnt, len(runs), processor))


def _is_too_small(group: Group, sides: Sequence[Sequence[Sample]], runs: Sequence[RunFigures]) -> bool:
    step = max(one.step_ms for one in runs)
    largest = max((sample.value for side in sides for sample in side), default=0.0)
    return group != "memory" and largest < SMALLEST_SHARE * step

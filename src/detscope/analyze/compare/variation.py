"""How equal processes differ: assumed at first, learnt per machine from repeats, kept beside the runs.

Two processes that do the same differ by where memory lies, which cores they get and what else the machine
does. The form is assumed: a share of the figure, more where the figure is short, more where steps were
unsteady. How large it is on a machine is learnt by `compare --repeat` as one factor per group of figures.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from detscope.analyze.compare.change import RatioSpread, Sample
from detscope.analyze.figure import Figure
from detscope.runs.atomic import write_text
from detscope.runs.reader import Run

FILE_NAME = "variation.json"
VERSION = 1
Group = Literal["step", "phase", "stage", "module", "operator", "kernel", "device", "memory"]

# of one process, as a share of the figure (a standard deviation): guessed, and tried as docs/compare.md says
ASSUMED: dict[Group, float] = {
    "step": 0.02,
    "phase": 0.03,
    "stage": 0.03,
    "module": 0.04,
    "operator": 0.06,
    "kernel": 0.02,
    "device": 0.03,
    "memory": 0.01,
}
JITTER_MS = 0.01  # of a figure, whatever its size: clocks, caches, one interrupt more
PHASE_JITTER_MS = 0.3  # the same of phases, whose borders are met by whatever a process does beside the model
MOOD = 0.25  # of the steps' own spread: an unsteady machine is another one a minute later
WAITING = 0.2  # of what waiting for cores explains: parts of a step meet it more and less than the whole
DISTURBED = 0.05  # of all cores: from here on other processes may have taken what a run lacks
ASSUMED_FREEDOM = 6.0  # what is assumed counts as much as seven processes that were measured
MOST_FACTOR = 100.0  # of one figure: a stopped process must not blind the machine for ever


class RunLoad(NamedTuple):
    """How much of its time a run computed, and what others used of the cores."""

    cores_busy: float | None
    others_share: float | None


class GroupVariation(Figure, frozen=True, kw_only=True):
    """How a machine's processes differ in one group of figures."""

    group: Group  # of figures
    factor: float  # times the assumed variance
    freedom: float  # processes, less one per side


class MachineVariation(Figure, frozen=True, kw_only=True):
    """What repeats taught about a machine."""

    machine: str  # its fingerprint
    processor: str | None = None  # by name
    runs: int = 0  # that taught it
    groups: tuple[GroupVariation, ...] = ()

    def find_spread(
        self, group: Group, value: float, steps_spread: Sequence[float | None], waiting: float = 0.0
    ) -> RatioSpread:
        """The spread that being two processes gives to a ratio of figures of this size (ms).

        `waiting` is how much more the later one waited for a core, as a logarithm of ratios.
        """
        known = next((one for one in self.groups if one.group == group), None)
        assumed = sum(assume_variance(group, value, spread) for spread in steps_spread)
        unequal = (WAITING * waiting) ** 2
        if known is None:
            return RatioSpread(assumed + unequal, ASSUMED_FREEDOM, waiting)
        freedom = ASSUMED_FREEDOM + known.freedom
        factor = (ASSUMED_FREEDOM + known.freedom * known.factor) / freedom
        return RatioSpread(assumed * factor + unequal, freedom, waiting)


def measure_waiting(first: RunLoad, second: RunLoad) -> float:
    """How far the later run may be slower because others took its cores (negative: the first); else 0.

    Where others worked, a run that computed for less of its time may have waited for a core or for something
    of its own: that cannot be told apart, and is at most the ratio of the times in which they computed.
    """
    shares = [load.others_share for load in (first, second)]
    quiet = all(share is not None and share < DISTURBED for share in shares)
    if quiet or not first.cores_busy or not second.cores_busy:
        return 0.0
    return math.log(first.cores_busy / second.cores_busy)


def assume_variance(group: Group, value: float, steps_spread: float | None) -> float:
    """Of the logarithm of one process's figure; jitter counts where the figure is a time."""
    timed = group not in ("device", "memory")
    jitter_ms = PHASE_JITTER_MS if group == "phase" else JITTER_MS
    jitter = jitter_ms / value if timed and value > 0 else 0.0
    mood = MOOD * (steps_spread or 0.0) if timed else 0.0
    return ASSUMED[group] ** 2 + jitter**2 + mood**2


def fingerprint_machine(run: Run) -> str:
    """The same for all runs of a machine; made of its parts, without a name of it."""
    facts = run.info.get("environment") or {}
    cpu, system = facts.get("cpu") or {}, facts.get("os") or {}
    devices = [one.get("name") for one in ((facts.get("gpus") or {}).get("devices") or [])]
    gigabytes = round(((facts.get("memory") or {}).get("total_bytes") or 0) / 2**30)
    parts = [cpu.get("model"), cpu.get("logical_cores"), cpu.get("usable_cores"), gigabytes, devices]
    parts += [system.get("system"), system.get("machine")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def find_variation(run: Run) -> MachineVariation:
    """What is known about the run's machine, from the file beside it or in a folder above; else nothing."""
    machine = fingerprint_machine(run)
    for path in _list_places(run.folder):
        found = next((one for one in read_variations(path) if one.machine == machine), None)
        if found is not None:
            return found
    return MachineVariation(machine=machine)


def _list_places(folder: Path) -> Iterator[Path]:
    yield from (parent / FILE_NAME for parent in list(folder.resolve().parents)[:3])
    yield Path("runs") / FILE_NAME


def read_variations(path: Path) -> tuple[MachineVariation, ...]:
    """What a file knows about machines; a file that is not there or not ours knows nothing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            return ()
        return msgspec.convert(content["machines"], tuple[MachineVariation, ...])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def learn_variation(
    known: MachineVariation, figures: Mapping[Group, Sequence[LearntFigure]], runs: int, processor: str | None
) -> MachineVariation:
    """What is known with the processes of one more repeat; later ones count as much as earlier ones."""
    groups = {one.group: one for one in known.groups}
    for group, rows in figures.items():
        if not rows:
            continue
        freedom = max(row.freedom for row in rows)  # rows of one process are no processes of their own
        factor = float(np.mean([min(row.factor, MOST_FACTOR) for row in rows]))
        old = groups.get(group)
        if old is not None:
            both = old.freedom + freedom
            factor, freedom = (old.factor * old.freedom + factor * freedom) / both, both
        groups[group] = GroupVariation(group=group, factor=factor, freedom=freedom)
    return MachineVariation(
        machine=known.machine,
        processor=processor or known.processor,
        runs=known.runs + runs,
        groups=tuple(groups.values()),
    )


def keep_variation(path: Path, learnt: MachineVariation) -> None:
    """Write what a machine taught into the file of all machines."""
    others = [one for one in read_variations(path) if one.machine != learnt.machine]
    content = {"version": VERSION, "machines": [msgspec.to_builtins(one) for one in (*others, learnt)]}
    write_text(path, json.dumps(content, indent=1) + "\n")


class LearntFigure(Figure, frozen=True, kw_only=True):
    """One figure in several equal processes."""

    factor: float  # its variance between them over what is assumed
    freedom: float  # processes, less one per side


def measure_figure(
    group: Group, sides: Sequence[Sequence[Sample]], steps_spread: Sequence[float], inside: Sequence[float]
) -> LearntFigure | None:
    """How one figure varied between the processes of each side; None where no side has two.

    `inside` is how much of that variance the steps of each process explain by themselves.
    """
    squares, freedom, values = 0.0, 0.0, []
    for side in sides:
        logs = [math.log(one.value) for one in side if one.value > 0]
        if len(logs) > 1:
            squares += float(np.var(logs, ddof=1)) * (len(logs) - 1)
            freedom += len(logs) - 1
            values += [one.value for one in side]
    if not freedom:
        return None
    explained = float(np.mean(inside)) if len(inside) else 0.0
    spread = float(np.median(steps_spread)) if len(steps_spread) else None
    assumed = assume_variance(group, float(np.median(values)), spread)
    return LearntFigure(factor=max(0.0, squares / freedom - explained) / assumed, freedom=freedom)

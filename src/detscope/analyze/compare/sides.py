"""Two sides of one or more runs: what differs in how they were made, how steady they are, what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from detscope.analyze.compare.change import (
    RISK,
    TIME_WORDS,
    Change,
    JudgedTables,
    ModuleChange,
    NamedChange,
    Sample,
    Verdict,
    Words,
    compare_samples,
    name_change,
)
from detscope.analyze.compare.differences import (
    WITHOUT_MODULES,
    SettingChange,
    find_differences,
    list_notes,
)
from detscope.analyze.compare.figures import RunFigures, Samples, read_figures
from detscope.analyze.compare.gate import GateResult
from detscope.analyze.compare.series import match_modules, same_content
from detscope.analyze.compare.variation import (
    DISTURBED,
    Group,
    MachineVariation,
    RunLoad,
    measure_waiting,
)
from detscope.analyze.figure import Clock, Figure
from detscope.analyze.summary import RunSummary

_TOLD: tuple[Verdict, ...] = ("slower", "faster", "new", "gone")
LARGEST = 10.0  # a change beyond +1,000 % is said to be beyond it
SMALLEST_SHARE = 0.002  # of the step: whatever happens to a smaller part, nobody should act
_PARTS_OF_STEP: tuple[Group, ...] = ("phase", "stage", "module", "operator", "kernel")
Side = Sequence[RunFigures]


class RunStability(Figure, frozen=True, kw_only=True):
    """How far the steps of one run can be trusted."""

    run: str  # its folder
    side: Literal["before", "after"]  # that it belongs to
    verdict: str  # stable, unstable, error or too few; no steps
    reason: str  # in words
    spread: float | None = None  # of the steps around their median


class BetweenProcesses(Figure, frozen=True, kw_only=True):
    """How equal processes are taken to differ in the median step."""

    source: str  # assumed, learnt on this machine, or measured in these runs
    step: float | None  # a standard deviation, as a share of the step
    runs: int = 0  # that taught it
    waiting: float = (
        0.0  # logarithm of how much slower others may have made the later run; negative: the first
    )


class NamedFinding(Figure, frozen=True, kw_only=True):
    """A finding by its name."""

    id: str  # the same in every run for the same rule and function
    claim: str  # what is the case, as the run that has it tells it


class FindingChanges(Figure, frozen=True, kw_only=True):
    """Findings at lines of code that one of two runs has alone, by their ids."""

    gone: tuple[NamedFinding, ...]  # that the later run has no more
    new: tuple[NamedFinding, ...]  # that the first run had not


class RunComparison(Figure, frozen=True, kw_only=True):
    """A later run, or several equal ones, against the base."""

    run: str  # its folder; of several the first
    runs_before: tuple[str, ...] = ()  # folders of the base
    runs_after: tuple[str, ...] = ()  # folders of the later side
    settings: list[SettingChange]  # what differs in how both were made
    stability: tuple[RunStability, ...] = ()  # of every run
    between: BetweenProcesses | None = None  # how equal processes differ
    notes: list[str]  # what is to be known when reading the figures
    paired: bool  # whether steps with the same images were compared with each other
    clock: Clock = "host"  # of phases, stages and modules, the same of both runs
    step: NamedChange  # the median step, ms
    step_p95: NamedChange | None = None  # ms; None where a run has too few steps
    phases: list[NamedChange]  # ms per step
    stages: list[NamedChange]  # ms per step
    modules: list[ModuleChange]  # ms per step: own, or with what they call on a device; real changes first
    operators: tuple[NamedChange, ...] = ()  # ms per step
    kernels: tuple[NamedChange, ...] = ()  # ms per step; in all where there are no steps
    device: tuple[NamedChange, ...] = ()  # shares, and ms per step where the name says so
    images_per_s: NamedChange | None  # None where one of the runs has none
    memory: list[NamedChange]  # bytes: the peak and its categories
    accuracy: list[NamedChange]  # AP, AP50, ...
    census: tuple[NamedChange, ...] = ()  # waits and launches per step; empty where a run has no census
    findings: FindingChanges | None = None  # None where a run has no census
    verdict: str  # the change of the step in a sentence, with its evidence
    gates: tuple[GateResult, ...] = ()  # in the order asked for

    @property
    def told_modules(self) -> list[ModuleChange]:
        """Modules whose change is worth naming."""
        return [row for row in self.modules if row.verdict in _TOLD]

    def name_figures(self) -> dict[str, Change]:
        """Every figure by the name that a gate has for it."""
        found: dict[str, Change] = {"step_p50": self.step}
        for name, row in (("step_p95", self.step_p95), ("images_per_s", self.images_per_s)):
            found |= {name: row} if row is not None else {}
        for kind, rows in (
            ("phase", self.phases),
            ("stage", self.stages),
            ("operator", self.operators),
            ("kernel", self.kernels),
            ("device", self.device),
            ("memory", self.memory),
            ("accuracy", self.accuracy),
            ("census", self.census),
        ):
            found |= {f"{kind}.{row.name}": row for row in rows}
        return found | {f"module.{row.path}": row for row in self.modules}


@dataclass(frozen=True)
class _Sides:
    """Two sides, and how their figures are compared."""

    before: Side
    after: Side
    known: MachineVariation
    alike: bool
    risk: float

    @property
    def waiting(self) -> float:
        """How much more the later side may have waited for a core than the first."""
        first, second = (
            RunLoad(side[0].cores_busy, side[0].others_share) for side in (self.before, self.after)
        )
        return measure_waiting(first, second)

    def compare(
        self,
        group: Group | None,
        take: Callable[[RunFigures], Sample | None],
        words: Words = TIME_WORDS,
        size_ms: float | None = None,
        take_after: Callable[[RunFigures], Sample | None] | None = None,
    ) -> Change:
        """One figure of both sides; `size_ms` where the figure itself is no time."""
        taken = [
            [found for one in side if (found := pick(one)) is not None]
            for side, pick in ((self.before, take), (self.after, take_after or take))
        ]
        values = [one.value for side in taken for one in side]
        spreads = [_spread_of_steps(side[0]) for side in (self.before, self.after)]
        size = size_ms if size_ms is not None else min(values, default=0.0)
        waiting = 0.0 if group in ("device", "memory") else self.waiting
        waiting *= -1 if words[0] == "faster" else 1  # of a speed, which falls where times grow
        between = self.known.find_spread(group, size, spreads, waiting) if group else None
        return compare_samples(
            taken[0],
            taken[1],
            between,
            same_content=self.alike,
            words=words,
            risk=self.risk,
            unjudged=self.explain_small(group, values),
        )

    def compare_named(
        self, group: Group | None, table: Callable[[RunFigures], Samples], words: Words = TIME_WORDS
    ) -> list[NamedChange]:
        """A table of figures by their names; time parts that are too small to matter are not judged."""
        names = dict.fromkeys(
            name for side in (self.before, self.after) for one in side for name in table(one)
        )
        rows = []
        for name in names:
            change = self.compare(group, lambda one, name=name: table(one).get(name), words)  # type: ignore[misc]
            rows.append(name_change(name, change))
        return rows

    def explain_small(self, group: Group | None, values: Sequence[float]) -> str | None:
        """Why a part of the step takes no place among the rows that are judged: it is too small to matter."""
        step = max(self.before[0].step_ms, self.after[0].step_ms)
        if group not in _PARTS_OF_STEP or max(values, default=0.0) >= SMALLEST_SHARE * step:
            return None
        return f"below {SMALLEST_SHARE:.1%} of the step"


def _spread_of_steps(one: RunFigures) -> float | None:
    return one.series.steadiness.spread if one.series.steadiness else None


def compare_sides(before: Side, after: Side, known: MachineVariation, risk: float = RISK) -> RunComparison:
    """Equal runs of one side against equal runs of the other; one of each is the usual case."""
    before, after, notes = _share_clock(before, after)
    base, other = before[0], after[0]
    alike = same_content(base.series, other.series)
    sides = _Sides(before, after, known, alike, risk)
    step = name_change("step p50", sides.compare("step", lambda one: one.p50))
    if step.before is None and step.after is None:
        step = msgspec.structs.replace(step, why="no steps were recorded")
    p95, speed = _compare_p95(sides), _compare_speed(sides)
    beside = [row for row in (p95, speed) if row is not None]
    phases = sides.compare_named("phase", lambda one: one.phases)
    inside = all(one.run.info.get("level") not in WITHOUT_MODULES for one in (base, other))
    stages = sides.compare_named("stage", lambda one: one.stages) if inside else []
    operators = sides.compare_named("operator", lambda one: one.operators)
    kernels = sides.compare_named("kernel", lambda one: one.kernels)
    device = sides.compare_named("device", lambda one: one.device, ("more", "less"))
    modules, memory = _compare_modules(sides) if inside else [], _compare_memory(sides)
    family = JudgedTables.of_tables(beside, phases, stages, modules, operators, kernels, device, memory)
    beside = family.correct_rows(beside)
    modules = sorted(family.correct_rows(modules), key=_rank_row)
    has_content = bool(base.series.content and other.series.content)
    accuracy = [
        row
        for row in sides.compare_named(None, lambda one: one.accuracy, ("better", "worse"))
        if row.before is not None and row.after is not None
    ]
    return RunComparison(
        run=str(other.run.folder),
        runs_before=tuple(str(one.run.folder) for one in before),
        runs_after=tuple(str(one.run.folder) for one in after),
        settings=find_differences(base.run, other.run),
        stability=tuple(
            [_tell_stability(one, "before") for one in before]
            + [_tell_stability(one, "after") for one in after]
        ),
        between=_tell_between(sides, step),
        notes=notes + list_notes(base.run, other.run, alike or not has_content),
        paired=step.paired,
        clock=base.series.clock,
        step=step,
        step_p95=next((row for row in beside if p95 is not None and row.name == p95.name), None),
        phases=family.correct_rows(phases),
        stages=family.correct_rows(stages),
        modules=modules,
        operators=tuple(sorted(family.correct_rows(operators), key=_rank_row)),
        kernels=tuple(sorted(family.correct_rows(kernels), key=_rank_row)),
        device=tuple(family.correct_rows(device)),
        images_per_s=next((row for row in beside if speed is not None and row.name == speed.name), None),
        memory=family.correct_rows(memory),
        accuracy=accuracy,
        census=tuple(
            row
            for row in sides.compare_named(None, lambda one: one.census, ("more", "less"))
            if row.before is not None and row.after is not None
        ),
        findings=_compare_findings(base.summary, other.summary),
        verdict=_write_verdict(step, modules, base.series.clock)
        if step.before is not None or step.after is not None
        else _write_without_steps([*accuracy, *device, *beside]),
    )


def _compare_findings(before: RunSummary, after: RunSummary) -> FindingChanges | None:
    """Those at lines, which a census counts; advice on the whole run comes and goes with the figures."""
    if before.census is None or after.census is None:
        return None
    one, two = ({row.id: row.claim for row in side.findings if row.where} for side in (before, after))
    gone, new = (
        tuple(NamedFinding(id=key, claim=claim) for key, claim in side.items() if key not in others)
        for side, others in ((one, two), (two, one))
    )
    return FindingChanges(gone=gone, new=new)


def _share_clock(before: Side, after: Side) -> tuple[Side, Side, list[str]]:
    """Both sides on the same clock, and what was given up for it."""
    lacks = next((one for one in (*before, *after) if one.series.clock == "host"), None)
    if lacks is None or all(one.series.clock == "host" for one in (*before, *after)):
        return before, after, []
    one, two = ([read_figures(run.run, "host", run.summary) for run in side] for side in (before, after))
    why = f"{lacks.run.folder.name} has no device's clock: phases, stages and modules are the host's"
    return one, two, [why]


def _compare_p95(sides: _Sides) -> NamedChange | None:
    change = sides.compare("step", lambda one: one.p95)
    return name_change("step p95", change) if change.before is not None or change.after is not None else None


def _compare_speed(sides: _Sides) -> NamedChange | None:
    step_ms = min(sides.before[0].step_ms, sides.after[0].step_ms)
    change = sides.compare("step", lambda one: one.images_per_s, ("faster", "slower"), step_ms)
    return name_change("images per second", change) if change.difference is not None else None


def _compare_memory(sides: _Sides) -> list[NamedChange]:
    """Live tensors are counted; what a process holds beside them varies."""
    words: Words = ("more", "less")
    counted = sides.compare_named(None, lambda one: _without(one.memory, "process"), words)
    return counted + sides.compare_named("memory", lambda one: _only(one.memory, "process"), words)


def _without(samples: Samples, name: str) -> Samples:
    return {key: sample for key, sample in samples.items() if key != name}


def _only(samples: Samples, name: str) -> Samples:
    return {key: sample for key, sample in samples.items() if key == name}


def _compare_modules(sides: _Sides) -> list[ModuleChange]:
    rows = []
    for old, new in match_modules(sides.before[0].series, sides.after[0].series):
        change = sides.compare("module", _take_module(old), take_after=_take_module(new))
        fields = msgspec.structs.asdict(change)
        if old is None or new is None:
            fields |= {"verdict": "new" if old is None else "gone", "why": None}
        rows.append(
            ModuleChange(path=new or old or "", was=old if new is not None and old != new else None, **fields)
        )
    return rows


def _take_module(path: str | None) -> Callable[[RunFigures], Sample | None]:
    return lambda one: None if path is None else one.modules.get(path)


def _rank_row(row: Change) -> tuple[bool, float]:
    """Real changes first, the largest first."""
    size = abs(row.difference) if row.difference is not None else row.before or row.after or 0.0
    return not row.is_seen, -size


def _tell_stability(one: RunFigures, side: Literal["before", "after"]) -> RunStability:
    found, run = one.series.steadiness, str(one.run.folder)
    if found is None:
        return RunStability(run=run, side=side, verdict="no steps", reason="none were recorded")
    others = one.others_share
    busy = "" if others is None or others < DISTURBED else f"; other processes used {others:.0%} of the cores"
    return RunStability(
        run=run, side=side, verdict=found.verdict, reason=found.reason + busy, spread=found.spread
    )


def _tell_between(sides: _Sides, step: Change) -> BetweenProcesses | None:
    """How processes are taken to differ, and from where that is known."""
    if min(step.runs) > 1:
        return BetweenProcesses(source="measured in these runs", step=None, runs=sum(step.runs))
    spreads = [_spread_of_steps(side[0]) for side in (sides.before, sides.after)]
    size = min(step.before or 1.0, step.after or 1.0)
    spread = sides.known.find_spread("step", size, spreads, sides.waiting)
    share = math.sqrt(spread.variance / 2)
    if sides.known.runs:
        return BetweenProcesses(
            source="learnt on this machine", step=share, runs=sides.known.runs, waiting=sides.waiting
        )
    return BetweenProcesses(source="assumed", step=share, waiting=sides.waiting)


def _write_without_steps(rows: Sequence[NamedChange]) -> str:
    """The first thing that both runs have: accuracy, or how busy the device was."""
    top = next((row for row in rows if row.before is not None and row.after is not None), None)
    if top is None:
        return "cannot tell: the runs share neither steps, accuracy nor a device's time line"
    change = "" if top.relative is None else f" ({top.relative:+.1%})"
    return (
        f"{top.verdict}: {top.name} was {top.before:.4g} and is {top.after:.4g}{change}; there are no steps"
    )


def _write_verdict(step: Change, modules: Sequence[ModuleChange], clock: Clock) -> str:
    if step.relative is None or step.relative_ci95 is None:
        return step.verdict_text
    low, high = step.relative_ci95
    ends = f"[{low:+.1%}, {'over ' if high > LARGEST else ''}{min(high, LARGEST):+.1%}]"
    sentence = f"{step.verdict}: the step changed by {step.relative:+.1%} {ends}"
    top = modules[0] if modules else None
    if top is not None and top.verdict in ("slower", "faster"):
        whose = "its own time" if clock == "host" else "the device's time"
        where = f"most in {top.path}" if step.is_seen else f"but {top.path} is {top.verdict}"
        sentence += f"; {where} ({top.difference or 0.0:+.2f} ms of {whose})"
    return sentence

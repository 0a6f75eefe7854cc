"""Whole runs compared: what differs in how they were made, then what changed in what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from detscope.analyze.compare.change import (
    UNSEEN,
    Change,
    ModuleChange,
    NamedChange,
    Verdict,
    Words,
    compare_steps,
    compare_totals,
    find_discoveries,
    name_change,
)
from detscope.analyze.compare.gate import Gate, GateResult, judge_gate
from detscope.analyze.compare.series import RunSeries, match_modules, read_series, same_content
from detscope.analyze.figure import Clock, Figure
from detscope.analyze.summary import summarize
from detscope.runs.reader import Run
from detscope.runs.standard_json import Json

# facts that differ between any two runs and explain nothing
_UNTELLING = ("time", "pid", "load", "available", "free", "uptime", "output.runs", "temperature")
_TOLD: tuple[Verdict, ...] = ("slower", "faster", "new", "gone")
SettingValue = str | int | float | bool | None


class SettingChange(Figure, frozen=True, kw_only=True):
    """A setting or fact that differs between two runs."""

    key: str  # its dotted name
    before: SettingValue  # None where the first run has none
    after: SettingValue  # None where the later run has none


class RunComparison(Figure, frozen=True, kw_only=True):
    """A later run against the base."""

    run: str  # its folder
    settings: list[SettingChange]  # what differs in how both were made
    notes: list[str]  # what is to be known when reading the figures
    paired: bool  # whether steps with the same images were compared with each other
    clock: Clock = "host"  # of phases, stages and modules, the same of both runs
    step: NamedChange  # the median step, ms
    phases: list[NamedChange]  # ms per step
    stages: list[NamedChange]  # ms per step
    modules: list[
        ModuleChange
    ]  # ms per step: own, on a device's clock with what they call; real changes first
    images_per_s: NamedChange | None  # None where one of the runs has none
    memory: list[NamedChange]  # bytes: the peak and its categories
    accuracy: list[NamedChange]  # AP and AP50
    verdict: str  # the change of the step in a sentence, with its evidence
    gates: tuple[GateResult, ...] = ()  # in the order asked for

    @property
    def told_modules(self) -> list[ModuleChange]:
        """Modules whose change is worth naming."""
        return [row for row in self.modules if row.verdict in _TOLD]

    def name_figures(self) -> dict[str, Change]:
        """Every figure by the name that a gate has for it."""
        found: dict[str, Change] = {"step_p50": self.step}
        for kind, rows in (("phase", self.phases), ("stage", self.stages)):
            found |= {f"{kind}.{row.name}": row for row in rows}
        found |= {f"module.{row.path}": row for row in self.modules}
        if self.images_per_s is not None:
            found["images_per_s"] = self.images_per_s
        for kind, rows in (("memory", self.memory), ("accuracy", self.accuracy)):
            found |= {f"{kind}.{row.name}": row for row in rows}
        return found


class ComparisonResult(Figure, frozen=True, kw_only=True):
    """Runs against a base, each by itself."""

    base: str  # its folder
    comparisons: list[RunComparison]  # one per later run
    failed: list[str]  # gates that failed

    @property
    def undecided_gates(self) -> list[str]:
        """Gates about changes that cannot be told from noise."""
        return [gate.gate for one in self.comparisons for gate in one.gates if gate.outcome == "cannot tell"]


def compare_runs(base: Run, others: Sequence[Run], gates: Sequence[Gate] = ()) -> ComparisonResult:
    """Every other run against the first."""
    first, first_totals = read_series(base), _read_totals(base)
    comparisons = []
    for other in others:
        one = _compare_pair(base, first, first_totals, other)
        figures = one.name_figures()
        comparisons.append(
            msgspec.structs.replace(one, gates=tuple(judge_gate(gate, figures) for gate in gates))
        )
    failed = [gate.gate for one in comparisons for gate in one.gates if gate.outcome == "failed"]
    return ComparisonResult(base=str(base.folder), comparisons=comparisons, failed=failed)


def _compare_pair(base: Run, first: RunSeries, first_totals: RunTotals, other: Run) -> RunComparison:
    second, second_totals = read_series(other), _read_totals(other)
    notes = []
    if first.clock != second.clock:
        lacks = base if first.clock == "host" else other
        first, second = read_series(base, "host"), read_series(other, "host")
        notes.append(f"{lacks.folder.name} has no device's clock: phases, stages and modules are the host's")
    alike = same_content(first, second)
    step = name_change("step", compare_steps(first.step, second.step, same_content=alike))
    modules = _compare_modules(first, second, alike)
    return RunComparison(
        run=str(other.folder),
        settings=_find_differences(base, other),
        notes=notes + _list_notes(base, other, alike),
        paired=step.paired,
        clock=first.clock,
        step=step,
        phases=_compare_named(first.phases, second.phases, alike),
        stages=_compare_named(first.stages, second.stages, alike),
        modules=modules,
        images_per_s=_compare_speed(first_totals, second_totals, step),
        memory=_compare_all(first_totals.memory, second_totals.memory, ("more", "less")),
        accuracy=[
            row
            for row in _compare_all(first_totals.accuracy, second_totals.accuracy, ("better", "worse"))
            if row.before is not None and row.after is not None
        ],
        verdict=_write_verdict(step, modules, first.clock),
    )


def _compare_named(
    first: Mapping[str, dict[int, float]], second: Mapping[str, dict[int, float]], alike: bool
) -> list[NamedChange]:
    names = [*first, *(name for name in second if name not in first)]
    changes = [compare_steps(first.get(name, {}), second.get(name, {}), same_content=alike) for name in names]
    return [name_change(name, change) for name, change in zip(names, _without_luck(changes), strict=True)]


def _without_luck(changes: Sequence[Change]) -> list[Change]:
    """Of many figures a few differ by luck: those are not named."""
    real = find_discoveries([change.chance for change in changes])
    return [
        msgspec.structs.replace(change, verdict=UNSEEN) if change.is_seen and not sure else change
        for change, sure in zip(changes, real, strict=True)
    ]


def _compare_modules(first: RunSeries, second: RunSeries, alike: bool) -> list[ModuleChange]:
    """Modules by the size of their change; those whose change is real come first."""
    pairs = match_modules(first, second)
    changes = [
        compare_steps(first.modules.get(old or "", {}), second.modules.get(new or "", {}), same_content=alike)
        for old, new in pairs
    ]
    rows = []
    for (old, new), change in zip(pairs, _without_luck(changes), strict=True):
        fields = msgspec.structs.asdict(change)
        if old is None or new is None:
            fields |= {"verdict": "new" if old is None else "gone", "why": None}
        rows.append(ModuleChange(path=new or old or "", was=old if old != new else None, **fields))
    return sorted(rows, key=lambda row: (row.verdict not in _TOLD, -_size_of(row)))


def _size_of(row: Change) -> float:
    return abs(row.difference) if row.difference is not None else row.before or row.after or 0.0


class RunTotals(Figure, frozen=True, kw_only=True):
    """Figures that a run has once."""

    images_per_s: float | None  # throughput
    memory: dict[str, float]  # bytes by name
    accuracy: dict[str, float]  # by name


def _read_totals(run: Run) -> RunTotals:
    summary = summarize(run)
    memory, accuracy = summary.memory, summary.accuracy
    sizes: dict[str, float] = {}
    if memory is not None:
        sizes = {"peak": memory.peak_bytes}
        sizes |= {one.name: one.bytes for one in memory.categories}
    elif summary.pass_memory is not None and summary.pass_memory.peak_bytes is not None:
        sizes = {"peak": summary.pass_memory.peak_bytes}
    named = {"AP": accuracy.ap, "AP50": accuracy.ap50} if accuracy is not None else {}
    scores = {name: value for name, value in named.items() if value is not None}
    return RunTotals(images_per_s=summary.images_per_s, memory=sizes, accuracy=scores)


def _compare_speed(first: RunTotals, second: RunTotals, step: Change) -> NamedChange | None:
    speed = compare_totals(first.images_per_s, second.images_per_s, ("faster", "slower"))
    if speed.difference is None:
        return None
    if not step.is_seen:  # the same measurement seen from the other side: it cannot tell more
        speed = msgspec.structs.replace(speed, verdict=step.verdict, why=step.why)
    return name_change("images per second", speed)


def _compare_all(first: Mapping[str, float], second: Mapping[str, float], words: Words) -> list[NamedChange]:
    names = [*first, *(name for name in second if name not in first)]
    return [name_change(name, compare_totals(first.get(name), second.get(name), words)) for name in names]


def _find_differences(base: Run, other: Run) -> list[SettingChange]:
    """Settings, then environment; what differs between any two runs is left out."""
    found: list[SettingChange] = []
    for key in ("settings", "model", "weights", "data", "environment"):
        one, two = (run.info.get(key) or {} for run in (base, other))
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            found += _walk_differences(one, two, "" if key == "settings" else f"{key}.")
    return [row for row in found if not any(word in row.key.lower() for word in _UNTELLING)]


def _walk_differences(
    first: Mapping[str, Json], second: Mapping[str, Json], prefix: str
) -> Iterator[SettingChange]:
    """Keys whose values differ, as dotted names; what one side lacks is None."""
    for key in [*first, *(key for key in second if key not in first)]:
        one, other, name = first.get(key), second.get(key), f"{prefix}{key}"
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _walk_differences(one, other, f"{name}.")
        elif one != other:
            yield SettingChange(key=name, before=_setting_value(one), after=_setting_value(other))


def _setting_value(value: Json) -> SettingValue:
    return value if isinstance(value, SettingValue) else str(value)


def _list_notes(base: Run, other: Run, alike: bool) -> list[str]:
    notes = []
    levels = [run.info.get("level") for run in (base, other)]
    if levels[0] != levels[1]:
        notes.append(f"levels differ ({levels[0]}, {levels[1]}): so does what recording itself costs")
    if not alike:
        notes.append("the runs fed different images or orders: steps are compared unpaired")
    notes += [f"{run.folder.name} is {run.status}" for run in (base, other) if run.status != "ok"]
    return notes


def _write_verdict(step: Change, modules: Sequence[ModuleChange], clock: Clock) -> str:
    if step.difference is None or step.relative is None or step.relative_ci95 is None:
        return step.verdict_text
    low, high = step.relative_ci95
    sentence = f"{step.verdict}: the step changed by {step.relative:+.1%} [{low:+.1%}, {high:+.1%}]"
    top = modules[0] if modules else None
    if top is not None and step.is_seen and top.verdict in ("slower", "faster"):
        whose = "its own time" if clock == "host" else "the device's time"
        sentence += f"; most in {top.path} ({top.difference or 0.0:+.2f} ms of {whose})"
    return sentence

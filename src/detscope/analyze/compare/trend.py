"""Several runs in the order of time or of commits: how figures went on, and where they changed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from detscope.analyze.compare.change import Change, JudgedTables, NamedChange
from detscope.analyze.compare.figures import RunFigures
from detscope.analyze.compare.sides import RunComparison, compare_sides
from detscope.analyze.compare.variation import MachineVariation
from detscope.analyze.figure import Figure
from detscope.runs.reader import Run

Order = Literal["time", "commit"]


class TrendPoint(Figure, frozen=True, kw_only=True):
    """A place of a trend: one run, or all runs of a commit."""

    label: str  # short: the commit, or when the run began
    runs: tuple[str, ...]  # their folders
    time: str  # when the first began: 20261115T101500Z
    commit: str | None = None  # that they ran; None where it is not known


class TrendRow(Figure, frozen=True, kw_only=True):
    """One figure over all points."""

    name: str  # as gates call it
    unit: str  # ms, images/s, bytes, score
    values: tuple[float | None, ...]  # one per point
    ends: tuple[tuple[float, float] | None, ...]  # 95 % interval of the change against the point before
    changes: tuple[NamedChange | None, ...]  # against the point before; of the first None


class Trend(Figure, frozen=True, kw_only=True):
    """Figures over several runs."""

    by: Order  # how points are ordered and put together
    points: tuple[TrendPoint, ...]  # the earliest first
    rows: tuple[TrendRow, ...]  # the step first
    turns: tuple[str, ...]  # where a figure changed, in words


def find_commit(run: Run) -> str | None:
    """The commit that a run's code was at."""
    commit = ((run.info.get("environment") or {}).get("code") or {}).get("commit")
    return str(commit)[:10] if commit else None


def follow_runs(runs: Sequence[RunFigures], known: MachineVariation, by: Order = "time") -> Trend:
    """The trend of some runs; every point is compared with the one before it."""
    points = _group_runs(runs, by)
    steps = [compare_sides(first, second, known) for first, second in pairwise(points)]
    rows = [_follow_figure(name, steps) for name in _choose_names(steps)]
    family = JudgedTables.of_tables([change for row in rows for change in row.changes if change is not None])
    rows = [_correct_row(row, family) for row in rows]
    told = tuple(_describe_point(point, by) for point in points)
    turns = [
        f"{row.name} {change.verdict} by {change.relative:+.1%} at {point.label}"
        for row in rows
        for point, change in zip(told, row.changes, strict=True)
        if change is not None and change.is_seen and change.relative is not None
    ]
    return Trend(by=by, points=told, rows=tuple(rows), turns=tuple(turns))


def _group_runs(runs: Sequence[RunFigures], by: Order) -> list[list[RunFigures]]:
    # runs of the same second stay as they were given
    ordered = sorted(runs, key=lambda one: one.run.folder.name.split("-")[0])
    if by == "time":
        return [[one] for one in ordered]
    groups: dict[str | None, list[RunFigures]] = {}
    for one in ordered:
        groups.setdefault(find_commit(one.run), []).append(one)
    return list(groups.values())


def _describe_point(side: Sequence[RunFigures], by: Order) -> TrendPoint:
    first = side[0].run
    time, commit = first.folder.name.split("-")[0], find_commit(first)
    label = (commit or "no commit") if by == "commit" else f"{time[6:8]}. {time[9:11]}:{time[11:13]}"
    if len(time) < 13 and by == "time":
        label = first.folder.name[:16]
    return TrendPoint(label=label, runs=tuple(str(one.run.folder) for one in side), time=time, commit=commit)


def _choose_names(steps: Sequence[RunComparison]) -> list[str]:
    """The headline, memory, accuracy and stages; what is below is for the comparison of two."""
    names = dict.fromkeys(name for one in steps for name in one.name_figures())
    wanted = ("step_p50", "step_p95", "images_per_s", "memory.peak", "memory.process", "accuracy.AP")
    return [name for name in wanted if name in names] + [name for name in names if name.startswith("stage.")]


def _follow_figure(name: str, steps: Sequence[RunComparison]) -> TrendRow:
    changes = [one.name_figures().get(name) for one in steps]
    first = changes[0]
    values = [first.before if first else None, *(change.after if change else None for change in changes)]
    kind = name.partition(".")[0]
    unit = {"images_per_s": "images/s", "memory": "bytes", "accuracy": ""}.get(kind, "ms")
    return TrendRow(
        name=name,
        unit=unit,
        values=tuple(values),
        ends=(None, *(change.relative_ci95 if change else None for change in changes)),
        changes=(None, *(_name_as(name, change) for change in changes)),
    )


def _name_as(name: str, change: Change | None) -> NamedChange | None:
    if change is None:
        return None
    fields = {field: getattr(change, field) for field in Change.__struct_fields__}
    return NamedChange(**(fields | {"name": name}))


def _correct_row(row: TrendRow, family: JudgedTables) -> TrendRow:
    known = family.correct_rows([change for change in row.changes if change is not None])
    left = iter(known)
    changes = tuple(None if change is None else next(left) for change in row.changes)
    return TrendRow(name=row.name, unit=row.unit, values=row.values, ends=row.ends, changes=changes)

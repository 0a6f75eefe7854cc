"""Planted against shown: every figure of a recorded case beside its truth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import polars as pl

from detscope.analyze.step.modules import ROOT
from detscope.analyze.step.steps import choose_typical_steps
from detscope.runs.reader import load_run
from simulated import Stretch
from simulated.cases import Recorded

PHASES = ("data", "transfer", "forward", "backward", "optimizer")
LOSS = "loss"
EXCHANGE = "collectives"  # the stage: waiting for other ranks that nothing hides
TOLERANCE = 0.02
# below this a difference is that of some marks: they cost 4 us each, and a border of ours is not the test's
LEAST_NS = 25_000


@dataclass(frozen=True)
class Line:
    """One figure."""

    what: str
    planted: Stretch
    wall_ns: float  # as shown
    idle_ns: float | None = None  # as shown: at most
    old_ms: float | None = None  # what was shown before there were two clocks

    @property
    def is_right(self) -> bool:
        """The interval is the planted one, and no idle time is told as work."""
        planted, shown = self.planted, self.wall_ns
        limit = max(LEAST_NS, TOLERANCE * planted.wall_ns)
        if abs(shown - planted.wall_ns) > limit:
            return False
        return self.idle_ns is None or shown - self.idle_ns <= planted.busy_ns + limit

    def __str__(self) -> str:
        planted = f"{self.planted.wall_ns / 1e6:9.3f} of which work {self.planted.busy_ns / 1e6:8.3f}"
        shown = f"{self.wall_ns / 1e6:9.3f}"
        if self.idle_ns is not None:
            shown += f" of which idle {self.idle_ns / 1e6:8.3f} at most"
        old = "" if self.old_ms is None else f"  before {self.old_ms:9.3f}"
        return f"{'  ' if self.is_right else '! '}{self.what:34} planted {planted}  shown {shown}{old}"


def find_wrong(lines: Sequence[Line]) -> str:
    """All lines, the wrong ones first, if there are any; else nothing."""
    ordered = sorted(lines, key=lambda line: line.is_right)
    return "" if all(line.is_right for line in lines) else "\n" + "\n".join(map(str, ordered))


def fit_work(work_ns: int, wall_ns: float, idle_ns: float) -> Stretch:
    """The truth of something without borders of its own: an interval as shown, if the work fits into it."""
    limit = max(LEAST_NS, TOLERANCE * work_ns)
    fits = wall_ns - idle_ns - limit <= work_ns <= wall_ns + limit
    return Stretch(round(wall_ns) if fits else work_ns, work_ns)


def read_table(recorded: Recorded, name: str) -> pl.DataFrame:
    path = recorded.folder / f"{name}.parquet"
    return pl.read_parquet(path) if path.exists() else pl.DataFrame()


def list_steps(recorded: Recorded, mode: str = "recorded") -> list[int]:
    """Steps of a mode, without the first of them, in which the device's queue still fills."""
    steps = read_table(recorded, "steps").filter(pl.col("mode") == mode)
    return sorted(steps["step"].unique().to_list())[1 if mode == "recorded" else 0 :]


# ---- tables: step by step, as marks give them


def compare_device_steps(recorded: Recorded) -> list[Line]:
    """Rows of `device_steps`: the steps, their phases, and what ran on streams beside them."""
    truth, lines = recorded.simulation.truth, []
    rows = read_table(recorded, "device_steps").filter(pl.col("step").is_in(list_steps(recorded)))
    for step, phase, stream, wall_ns, idle_ns in rows.select(
        "step", "phase", "stream", "wall_ns", "idle_ns"
    ).iter_rows():
        if phase != "other":
            whole = phase == "step"
            planted = truth.find_step(step) if whole else truth.find_phase(step, phase, stream)
            lines.append(Line(f"step {step} {phase} on {stream}", planted, wall_ns, idle_ns))
    return lines


def compare_device_spans(recorded: Recorded, kind: str) -> list[Line]:
    """Rows of `device_spans` of stages or modules.

    Backward has no borders of its own, so the planted interval is what was shown, if the work fits into it.
    """
    truth, lines = recorded.simulation.truth, []
    rows = read_table(recorded, "device_spans")
    if rows.is_empty():
        return []
    rows = rows.filter((pl.col("kind") == kind) & pl.col("step").is_in(list_steps(recorded)))
    if kind == "stage":  # with their parts; a loss that is no module has no borders of its own
        outermost = pl.col("path").str.split(".").list.first()
        of_model = pl.col("direction").is_in(
            ["forward", "backward", "recompute"]
        )  # not the optimizer's parts
        rows = rows.with_columns(path=outermost).filter(of_model & (pl.col("path") != LOSS))
        each = rows.group_by("step", "path", "direction", maintain_order=True)
        rows = each.agg(pl.col("wall_ns").sum(), pl.col("idle_ns").sum())
    for step, path, direction, wall_ns, idle_ns in rows.select(
        "step", "path", "direction", "wall_ns", "idle_ns"
    ).iter_rows():
        if kind == "stage" and not path:
            continue
        if path == EXCHANGE:
            exposed_ns = truth.find_exposed_exchange(step)
            lines.append(Line(f"step {step} {path}", Stretch(exposed_ns, exposed_ns), wall_ns))
            continue
        planted = truth.find_module(step, path, direction)
        if direction != "forward":
            inside = min(max(planted.busy_ns, wall_ns - idle_ns), wall_ns)
            planted = Stretch(
                round(wall_ns if inside == planted.busy_ns else planted.busy_ns), planted.busy_ns
            )
        lines.append(Line(f"step {step} {path or 'model'} {direction}", planted, wall_ns, idle_ns))
    return lines


def compare_kernels(recorded: Recorded) -> list[Line]:
    """Rows of `device_events`: work of modules and phases in the steps whose operators were recorded."""
    truth, lines = recorded.simulation.truth, []
    events = read_table(recorded, "device_events")
    events = events.filter(~pl.col("communication") & (pl.col("stream") == 0))
    for step in list_steps(recorded, "ops"):
        own = events.filter(pl.col("step") == step)
        for phase in PHASES[1:]:
            found = own.filter(pl.col("phase") == phase)["wall_ns"].sum()
            busy_ns = truth.find_phase_work(step, phase)
            lines.append(Line(f"step {step} {phase}", Stretch(busy_ns, busy_ns), found))
        for path in recorded.case.paths:
            below = (pl.col("module") == path) | pl.col("module").str.starts_with(f"{path}.")
            for direction in ("forward", "backward"):
                found = own.filter(below & (pl.col("direction") == direction))["wall_ns"].sum()
                busy_ns = truth.find_module(step, path, direction).busy_ns
                lines.append(Line(f"step {step} {path} {direction}", Stretch(busy_ns, busy_ns), found))
    return lines


# ---- the summary: the typical step, which is the mean of those that are chosen for it


def list_typical(recorded: Recorded) -> list[int]:
    """Steps that the summary is about."""
    chosen = choose_typical_steps(load_run(recorded.folder).table("steps")).steps
    timed = read_table(recorded, "device_steps")["step"].unique().to_list()
    return [step for step in chosen if step in timed]


def find_mean(stretches: Iterable[Stretch]) -> Stretch:
    found = list(stretches)
    names = ("wall_ns", "busy_ns", "host_ns")
    return Stretch(*(round(fmean(getattr(one, name) for one in found)) for name in names))


def find_module_work(recorded: Recorded, path: str, steps: Sequence[int]) -> int:
    """Forward and backward, per step."""
    find = recorded.simulation.truth.find_module
    each = [find(step, path, way).busy_ns for step in steps for way in ("forward", "backward")]
    return sum(each) // len(steps)


def compare_summary(recorded: Recorded, summary: Any, old: Mapping[str, float] | None = None) -> list[Line]:
    """Phases and stages of the typical step."""
    truth, steps, old, lines = recorded.simulation.truth, list_typical(recorded), old or {}, []
    for phase in summary.phases:
        if phase.name != "other":
            planted = find_mean(truth.find_phase(step, phase.name) for step in steps)
            idle_ns = None if phase.idle_ms is None else phase.idle_ms * 1e6
            lines.append(Line(phase.name, planted, phase.ms * 1e6, idle_ns, old.get(phase.name)))
    for stage in summary.stages:
        if stage.name == EXCHANGE:
            exposed_ns = round(fmean(truth.find_exposed_exchange(step) for step in steps))
            lines.append(Line(stage.name, Stretch(exposed_ns, exposed_ns), stage.total_ms * 1e6))
        if stage.name in recorded.case.paths:
            work_ns = find_module_work(recorded, stage.name, steps)
            about = (stage.total_ms * 1e6, (stage.idle_ms or 0) * 1e6)
            planted = fit_work(work_ns, *about)
            lines.append(Line(stage.name, planted, *about, old.get(stage.name)))
    return lines


def compare_modules(recorded: Recorded, summary: Any) -> list[Line]:
    """Modules of the typical step, by their kernels: their work, whatever lies between."""
    steps, lines = list_steps(recorded, "ops"), []
    for module in summary.modules:
        if module.total_ms is not None and module.kind == "module":
            path = "" if module.path == ROOT else module.path
            work_ns = find_module_work(recorded, path, steps)
            shown_ns = (module.total_ms - (module.idle_ms or 0)) * 1e6
            lines.append(Line(module.path, Stretch(work_ns, work_ns), shown_ns))
    return lines

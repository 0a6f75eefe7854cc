"""Planted against shown: every figure of a recorded case beside its truth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import polars as pl

from simulated import Stretch
from simulated.cases import STAGES, Recorded

PHASES = ("data", "transfer", "forward", "backward", "optimizer")
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
    """All lines, if one of them is wrong; else nothing."""
    return "" if all(line.is_right for line in lines) else "\n" + "\n".join(map(str, lines))


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
    for step, path, direction, wall_ns, idle_ns in rows.select(
        "step", "path", "direction", "wall_ns", "idle_ns"
    ).iter_rows():
        if kind == "stage" and not path:
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


# ---- the summary: the typical step


def find_typical(stretches: Iterable[Stretch]) -> Stretch:
    found = list(stretches)
    return Stretch(
        *(round(median(getattr(one, name) for one in found)) for name in ("wall_ns", "busy_ns", "host_ns"))
    )


def compare_summary(recorded: Recorded, summary: Any, old: dict[str, float] | None = None) -> list[Line]:
    """Phases and stages of the typical step."""
    truth, steps, old = recorded.simulation.truth, list_steps(recorded), old or {}
    lines = []
    for phase in summary.phases:
        if phase.name != "other":
            planted = find_typical(truth.find_phase(step, phase.name) for step in steps)
            idle_ns = None if phase.idle_ms is None else phase.idle_ms * 1e6
            lines.append(Line(phase.name, planted, phase.ms * 1e6, idle_ns, old.get(phase.name)))
    for stage in summary.stages:
        if stage.name in STAGES:
            both = [
                sum(truth.find_module(step, stage.name, way).busy_ns for way in ("forward", "backward"))
                for step in steps
            ]
            busy_ns = round(median(both))
            idle_ns = (stage.idle_ms or 0) * 1e6
            inside = stage.total_ms * 1e6 - idle_ns <= busy_ns * (1 + TOLERANCE) <= stage.total_ms * 1.05e6
            planted = Stretch(round(stage.total_ms * 1e6) if inside else busy_ns, busy_ns)
            lines.append(Line(stage.name, planted, stage.total_ms * 1e6, idle_ns, old.get(stage.name)))
    return lines


def compare_modules(recorded: Recorded, summary: Any) -> list[Line]:
    """Modules of the typical step, by their kernels: work alone."""
    truth, steps, lines = recorded.simulation.truth, list_steps(recorded, "ops"), []
    for module in summary.modules:
        if module.path and module.total_ms is not None and module.kind == "module":
            both = [
                sum(truth.find_module(step, module.path, way).busy_ns for way in ("forward", "backward"))
                for step in steps
            ]
            busy_ns = round(median(both))
            lines.append(Line(module.path, Stretch(busy_ns, busy_ns), module.total_ms * 1e6))
    return lines

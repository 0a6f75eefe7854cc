"""What a page draws beside the summary: series thinned until they can be drawn, trees with parents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from detscope.analyze.device.times import read_marks
from detscope.analyze.step.modules import ROOT
from detscope.analyze.summary import RunSummary, summarize
from detscope.analyze.timeline.figures import RunTimeline
from detscope.analyze.timeline.read import read_timeline
from detscope.runs.reader import Run

MOST_POINTS = 1500
STEP_BINS = 20


@dataclass(frozen=True)
class ReportData:
    """A run as the report reads it."""

    run: Run
    summary: RunSummary
    just_ended: bool = False  # the next useful command is another one then

    @cached_property
    def steps(self) -> pl.DataFrame:
        """Step, mode and milliseconds of every step."""
        whole = self.run.table("steps").filter(pl.col("phase") == "step").sort("step")
        return whole.select("step", "mode", ms=pl.col("wall_ns") / 1e6)

    @cached_property
    def device_steps(self) -> pl.DataFrame | None:
        """The same by the device's clock, where its marks told it."""
        marks = read_marks(self.run) if self.summary.clocks.clock == "device" else None
        if marks is None:
            return None
        own = marks.steps.filter(pl.col("phase") == "step").select("step", ms=pl.col("wall_ns") / 1e6)
        return self.steps.drop("ms").join(own, on="step")

    @cached_property
    def content(self) -> pl.DataFrame:
        """What was in every step, with its milliseconds: the host's step may hold work of the one before."""
        steps = self.steps if self.device_steps is None else self.device_steps
        return self.run.table("content").join(steps, on="step")

    @cached_property
    def timeline(self) -> RunTimeline | None:
        """Steps to look into; None where no span was recorded."""
        modules = {"" if row.path == ROOT else row.path: row for row in self.summary.modules}
        return read_timeline(self.run, modules)


def report_data(run: Run, just_ended: bool = False) -> ReportData:
    """Open a run for the report."""
    return ReportData(run, summarize(run), just_ended)


def thinned(
    x: Sequence[float], y: Sequence[float], most: int = MOST_POINTS
) -> tuple[list[float], list[float]]:
    """At most so many points: of each stretch the lowest and the highest, so that no spike is lost."""
    if len(x) <= most:
        return list(x), list(y)
    values = np.asarray(y, dtype=float)
    kept: list[int] = []
    for part in np.array_split(np.arange(len(values)), most // 2):
        kept += sorted({int(part[values[part].argmin()]), int(part[values[part].argmax()])})
    return [x[index] for index in kept], [y[index] for index in kept]


@dataclass(frozen=True)
class StepBin:
    """A stretch of measured steps."""

    first: int
    last: int
    lowest_ms: float
    median_ms: float
    highest_ms: float
    n: int


def binned_steps(steps: pl.DataFrame, bins: int = STEP_BINS) -> list[StepBin]:
    """Measured steps in stretches of time."""
    chosen = steps.filter(~pl.col("mode").is_in(["warmup", "evaluation"]))
    parts = np.array_split(np.arange(chosen.height), min(bins, chosen.height) or 1)
    found = []
    for part in (part for part in parts if len(part)):
        piece = chosen[part.tolist()]
        values, numbers = piece["ms"].to_numpy(), piece["step"].to_list()
        low, middle, high = (float(find(values)) for find in (np.min, np.median, np.max))
        found.append(StepBin(numbers[0], numbers[-1], low, middle, high, len(part)))
    return found


def tree_of(paths: Sequence[str], root: str) -> list[tuple[str, str]]:
    """(path, parent) of every path: the parent is the longest other path that begins it."""
    known = dict.fromkeys(paths)
    found = []
    for path in known:
        if path == root:
            found.append((path, ""))
            continue
        parts = path.split(".")
        above = (".".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
        found.append((path, next((name for name in above if name in known), root if root in known else "")))
    return found

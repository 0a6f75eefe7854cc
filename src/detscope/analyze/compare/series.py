"""What two runs are compared by: one value per measured step for the step, phases, stages and modules."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from detscope.analyze.figure import Clock
from detscope.analyze.step.clocks import RunTimes, read_times
from detscope.analyze.step.modules import DIRECTIONS, OUTSIDE, ROOT
from detscope.analyze.step.series import step_points
from detscope.analyze.step.steady import Steadiness
from detscope.analyze.step.steps import PHASES, choose_typical_steps
from detscope.runs.reader import Run

PerStep = dict[int, float]


@dataclass(frozen=True)
class RunSeries:
    """A run as series: step number to milliseconds."""

    step: PerStep
    phases: dict[str, PerStep]
    stages: dict[str, PerStep]
    modules: dict[str, PerStep]  # forward and backward: own time; on a device's clock with what they call
    clock: Clock = "host"  # of phases, stages and modules
    types: dict[str, tuple[str, int]] = field(default_factory=dict)  # module -> type, parameters
    content: dict[int, str] = field(default_factory=dict)  # step -> which images
    timed: PerStep = field(default_factory=dict)  # bare ones as well: speed and percentiles are of all
    images: PerStep = field(default_factory=dict)  # of those of these whose batches are known
    steadiness: Steadiness | None = None  # None where the run has no steps


def read_series(run: Run, clock: Clock = "device") -> RunSeries:
    """Read the series of a run, the measured steps only; on the device's clock where it has one."""
    steps = run.table("steps")
    typical = choose_typical_steps(steps, find_slow_start=run.info.get("verb") != "infer")
    times = read_times(run, typical) if clock == "device" else RunTimes()
    measured, device = set(typical.measured), times.told
    by_phase = _split_phases(steps, measured)
    phases = by_phase if device is None else _split_phases(device.steps, measured)
    stages: dict[str, PerStep] = {}
    for point in step_points(run, times):
        if point.group == "stages_ms" and point.step in measured:
            stages.setdefault(point.name, {})[point.step] = point.value
    nodes = run.table("nodes").filter(pl.col("kind") == "module")
    inside = run.table("content")
    content = inside.filter(pl.col("step").is_in(list(measured)))
    images = dict(inside.select("step", "images").drop_nulls().iter_rows())
    timed = _split_phases(steps, set(typical.timed)).get("step", {})
    return RunSeries(
        step=by_phase.get("step", {}),
        phases={name: phases[name] for name in PHASES if name in phases},
        stages=stages,
        modules=_module_times(run.table("spans"), measured)
        if device is None
        else _module_times(device.spans.with_columns(self_ns=pl.col("wall_ns")), measured),
        clock=times.clock,
        types={
            row["path"] or ROOT: (row["type"] or "", row["parameters"] or 0)
            for row in nodes.select("path", "type", "parameters").to_dicts()
        },
        content={
            step: ids for step, ids in content.select("step", "image_ids").iter_rows() if ids is not None
        },
        timed=timed,
        images={step: float(images[step]) for step in timed if images.get(step)},
        steadiness=typical.steadiness if measured else None,
    )


def _split_phases(steps: pl.DataFrame, measured: set[int]) -> dict[str, PerStep]:
    chosen = steps.filter(pl.col("step").is_in(list(measured)))
    grouped = chosen.group_by("phase", maintain_order=True)
    return {str(name): _per_step(part, "wall_ns") for (name,), part in grouped}


def _per_step(part: pl.DataFrame, column: str) -> PerStep:
    return {step: ns / 1e6 for step, ns in part.select("step", column).drop_nulls().iter_rows()}


def _module_times(spans: pl.DataFrame, measured: set[int]) -> dict[str, PerStep]:
    own = (
        spans.filter(
            pl.col("step").is_in(list(measured))
            & pl.col("direction").is_in(list(DIRECTIONS))
            & (pl.col("kind") != "stage")
        )
        .with_columns(
            path=pl.when(pl.col("kind") == "outside")
            .then(pl.lit(OUTSIDE))
            .when(pl.col("path") == "")
            .then(pl.lit(ROOT))
            .otherwise("path")
        )
        .group_by("path", "step")
        .agg(pl.col("self_ns").sum())
    )
    return {str(path): _per_step(part, "self_ns") for (path,), part in own.group_by("path")}


def same_content(first: RunSeries, second: RunSeries) -> bool:
    """Whether both runs fed the same images in the same steps."""
    shared = set(first.content) & set(second.content)
    return bool(shared) and all(first.content[step] == second.content[step] for step in shared)


def match_modules(first: RunSeries, second: RunSeries) -> list[tuple[str | None, str | None]]:
    """Modules of two runs beside each other: by path, and renamed ones by type and size in their order."""
    pairs: list[tuple[str | None, str | None]] = [
        (path, path) for path in first.modules if path in second.modules
    ]
    gone = [path for path in first.types if path in first.modules and path not in second.modules]
    gone += [path for path in first.modules if path not in second.modules and path not in first.types]
    new = [path for path in second.types if path in second.modules and path not in first.modules]
    new += [path for path in second.modules if path not in first.modules and path not in second.types]
    for path in gone:
        alike = [
            other for other in new if first.types.get(path) and second.types.get(other) == first.types[path]
        ]
        if alike:
            # the most alike by its own name, else the first in the model's order
            best = next((other for other in alike if _leaf_of(other) == _leaf_of(path)), alike[0])
            new.remove(best)
            pairs.append((path, best))
        else:
            pairs.append((path, None))
    return pairs + [(None, path) for path in new]


def _leaf_of(path: str) -> str:
    return path.rpartition(".")[2]

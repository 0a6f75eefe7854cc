"""What the measurement itself costs: bare steps against recorded ones, and the work between steps."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import polars as pl

from detscope.analyze.device.times import DeviceTimes
from detscope.analyze.figure import Clock, Figure
from detscope.analyze.stats import Interval, bootstrap_interval

LEAST_BARE = 5  # one or two bare steps give any number: 0.0008 and 2.37 were seen


class OwnCost(Figure, frozen=True, kw_only=True):
    """What a step of this run took over what it would have taken without a recorder."""

    value: float | None  # a ratio: 1.02 is 2 % longer
    ci95: Interval | None  # 95 % interval of the ratio
    n: int  # bare steps with recorded ones beside them
    recorded_over_bare: float | None = None  # of the steps alone, in the median
    between_steps_ms: float | None = None  # the recorder's own work between steps
    clock: Clock = "host"  # by whose time steps are compared
    why: str | None = None  # why it is not known


@dataclass(frozen=True)
class _Step:
    """One measured step, in nanoseconds."""

    bare: bool
    work_ns: float  # without the waiting for data
    wait_ns: float
    pause_ns: float  # the recorder's own work before it
    absorbed_ns: float  # waiting in which loader workers caught up with whatever we took


def measure_own_cost(
    steps: pl.DataFrame,
    between: pl.DataFrame | None = None,
    loader: pl.DataFrame | None = None,
    alike: Mapping[int, tuple[str, ...] | int] | None = None,
    device: DeviceTimes | None = None,
) -> OwnCost:
    """What a step of this run took over what it would have taken without a recorder.

    Recorded over bare step time comes from neighbours, so that drift cancels; with `alike` (what was in each
    step) from the nearest step with the same content. `between` (the table `content`) has the recorder's work
    between steps, `loader` the waiting for workers: what we take while they lag behind costs nothing.
    `device` has the same steps on the device's clock, which then counts: what a recorded step leaves in the
    queue is not paid by the bare one after it, and what the host does while the device works costs nothing.
    """
    found = _measured(steps, between, loader)
    clock: Clock = "host" if device is None else "device"
    if device is not None:
        found = _measure_on_device(steps, found, device)
    bare = [number for number, step in found.items() if step.bare]
    recorded = [number for number, step in found.items() if not step.bare]
    ratios = []
    for number in bare:
        beside = _beside(number, recorded, alike)
        if beside and found[number].work_ns > 0:
            ratios.append(fmean(found[n].work_ns for n in beside) / found[number].work_ns)
    if len(ratios) < LEAST_BARE:
        why = f"needs {LEAST_BARE} bare steps with recorded ones beside them, this run has {len(ratios)}"
        return OwnCost(value=None, ci95=None, n=len(ratios), why=why, clock=clock)
    values = np.asarray(ratios)
    interval = bootstrap_interval(values, lambda sample: float(np.median(sample)))
    assert interval is not None
    # outliers stay out of the plain step: a bare one that the machine held up would hide what we cost
    plain_ns = float(np.median([found[number].work_ns for number in bare]))
    everything = list(found.values())
    pause_ns = fmean(step.pause_ns for step in everything)
    wait_ns = fmean(step.wait_ns for step in everything)
    absorbed_ns = fmean(step.absorbed_ns for step in everything)
    share = len(recorded) / len(everything)

    def whole(ratio: float) -> float:
        extra_ns = share * (ratio - 1) * plain_ns + pause_ns
        absorbed = min(max(extra_ns, 0.0), absorbed_ns)
        return (plain_ns + wait_ns + extra_ns) / (plain_ns + wait_ns + absorbed)

    return OwnCost(
        value=whole(float(np.median(values))),
        ci95=Interval(whole(interval.low), whole(interval.high)),
        n=len(ratios),
        recorded_over_bare=float(np.median(values)),
        between_steps_ms=pause_ns / 1e6,
        clock=clock,
    )


def _measured(
    steps: pl.DataFrame, between: pl.DataFrame | None, loader: pl.DataFrame | None
) -> dict[int, _Step]:
    """Recorded and bare steps by number, in their order."""
    chosen = steps.filter(pl.col("mode").is_in(["recorded", "bare"])).sort("step")
    times: dict[int, dict[str, float]] = {}
    bare: set[int] = set()
    for number, mode, phase, wall_ns in chosen.select("step", "mode", "phase", "wall_ns").iter_rows():
        times.setdefault(number, {})[phase] = wall_ns
        if mode == "bare":
            bare.add(number)
    pauses = _by_step(between, pl.col("pause_ns")) if between is not None else {}
    lags: dict[int, float] = {}
    if loader is not None:
        made = loader.filter((pl.col("region") == "batch") & (pl.col("worker") >= 0)).drop_nulls("receive_ns")
        lags = _by_step(made, (pl.col("wait_ns") - pl.col("receive_ns")).clip(lower_bound=0))
    return {
        number: _Step(
            number in bare,
            one["step"] - one.get("data", 0.0),
            one.get("data", 0.0),
            pauses.get(number, 0.0),
            lags.get(number, 0.0),
        )
        for number, one in times.items()
        if "step" in one
    }


def _measure_on_device(
    steps: pl.DataFrame, found: Mapping[int, _Step], device: DeviceTimes
) -> dict[int, _Step]:
    """The same steps by the device's time; of bare ones it only knows when they began and ended.

    The device waited for a batch from when it had come to the step until the batch arrived at the host; the
    recorder's work between steps cost what of it the device stood idle.
    """
    begun = dict(steps.filter(pl.col("phase") == "step").select("step", "start_ns").iter_rows())
    whole = device.steps.filter(pl.col("phase") == "step").sort("step")
    times = {
        step: (start, wall) for step, start, wall in whole.select("step", "start_ns", "wall_ns").iter_rows()
    }
    result = {}
    for number, step in found.items():
        if number not in times:
            continue
        start_ns, wall_ns = times[number]
        wait_ns = min(max(0.0, begun[number] + step.wait_ns - start_ns), step.wait_ns)
        before = times.get(number - 1)
        gap_ns = max(0.0, start_ns - sum(before)) if before is not None else 0.0
        result[number] = _Step(
            step.bare,
            wall_ns - wait_ns,
            wait_ns,
            min(step.pause_ns, gap_ns),
            min(step.absorbed_ns, wait_ns),
        )
    return result


def _by_step(table: pl.DataFrame, value: pl.Expr) -> dict[int, float]:
    found = table.select("step", value.alias("ns")).drop_nulls().group_by("step").agg(pl.col("ns").sum())
    return dict(found.iter_rows())


def _beside(number: int, recorded: list[int], alike: Mapping[int, tuple[str, ...] | int] | None) -> list[int]:
    if alike is not None:
        same = [other for other in recorded if alike.get(other) == alike.get(number)]
        return sorted(same, key=lambda other: abs(other - number))[:1]
    place = bisect(recorded, number)
    return recorded[max(0, place - 1) : place] + recorded[place : place + 1]

"""Device use by step, by phase, stage, module and direction of the code that launched the work, and by role.

Work belongs to the part that launched it. Idle time belongs to the part whose work ended the gap: the
device had been waiting for it. So the use of a part is busy / (busy + idle before its work).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from detscope.analyze.device.idle import CauseTimes, IdlePieces
from detscope.analyze.device.intervals import (
    Intervals,
    intersect_intervals,
    measure_by_group,
    measure_overlap,
    merge_intervals,
    subtract_intervals,
)
from detscope.analyze.device.timeline import DeviceTimeline, event_borders, merge_events
from detscope.analyze.device.utilisation import divide_safely
from detscope.analyze.figure import Figure
from detscope.analyze.step.modules import ROOT

MOST_ROWS = 200
COMMUNICATION = "communication"
DEFINITION = (
    "kernels_ns: length of the union of the kernels that the part launched; idle_ns: idle time that ended"
    " with an event of this part; use: kernels_ns / (busy_ns + idle_ns), busy_ns counting copies too; _ms and"
    " launches: per step where there are steps, else in all"
)


class DeviceStep(Figure, frozen=True, kw_only=True):
    """One step of one device."""

    rank: int  # from 0
    device: int  # its number
    step: int  # its number, from 0
    window_ns: int  # from the end of the previous step's work to the end of its own
    host_ns: int  # as the host saw it
    kernels_ns: int  # union of kernels
    with_copies_ns: int  # union of all events
    copies_ns: int  # union of copies
    kernels: float | None  # share of the window
    with_copies: float | None  # share of the window
    idle_by_cause: CauseTimes


class PartUse(Figure, frozen=True, kw_only=True):
    """What a phase, stage, module, direction or operator did with the device."""

    name: str | None  # None: work that belongs to none
    kernels: int  # launches
    kernel_time_ns: int  # summed
    kernels_ns: int  # union
    busy_ns: int  # union of kernels and copies
    idle_ns: int  # that ended with its work
    idle_by_cause: CauseTimes
    use: float | None  # kernels_ns over busy_ns + idle_ns
    kernels_ms: float  # per step where there are steps, else in all; as are the three that follow
    busy_ms: float  # kernels and copies
    idle_ms: float  # before its work
    launches: float  # kernels


class DeviceParts(Figure, frozen=True, kw_only=True):
    """Device use by every kind of part; what costs most comes first.

    Collective kernels are no phase's, stage's or module's: all of them are the part `communication`.
    """

    phase: tuple[PartUse, ...] = ()
    stage: tuple[PartUse, ...] = ()
    module: tuple[PartUse, ...] = ()
    direction: tuple[PartUse, ...] = ()
    operator: tuple[PartUse, ...] = ()


class RoleTime(Figure, frozen=True, kw_only=True):
    """What of the average step one role took that no earlier one had taken."""

    name: str  # kernel, memcpy, memset, communication, runtime, loader, cpu, other
    average_us: float  # per step
    share: float  # of all steps


class StepRoles(Figure, frozen=True, kw_only=True):
    """One step by role."""

    step: int  # its number, from 0
    step_us: float  # the whole step
    kernel_us: float  # kernels that compute
    memcpy_us: float  # copies
    memset_us: float  # memory sets
    communication_us: float  # collective kernels
    runtime_us: float  # the runtime's calls
    loader_us: float  # the loader
    cpu_us: float  # operators on the host
    other_us: float  # none of these


class StepBreakdown(Figure, frozen=True, kw_only=True):
    """The step as TensorBoard's profiler told it."""

    steps: int  # how many
    average_step_us: float  # on the host
    roles: tuple[RoleTime, ...]
    per_step: tuple[StepRoles, ...]
    definition: str = (
        "time of the step by role: kernel, memcpy, memset, communication, runtime, loader, cpu, other;"
        " each role only gets time that no earlier one took"
    )


def measure_steps(line: DeviceTimeline, pieces: IdlePieces) -> Iterator[DeviceStep]:
    """Utilisation and idle causes of every step."""
    steps = line.steps
    windows = (steps.ends - steps.starts).tolist()
    unions = (line.kernels, line.busy, line.copies)
    kernels, busy, copies = (measure_overlap(one, steps.starts, steps.ends).tolist() for one in unions)
    hosts = (steps.host_ends - steps.host_starts).tolist()
    for index, idle in enumerate(pieces.sum_by_owner(pieces.step, len(steps))):
        yield DeviceStep(
            rank=line.rank,
            device=line.device,
            step=int(steps.numbers[index]),
            window_ns=windows[index],
            host_ns=hosts[index],
            kernels_ns=kernels[index],
            with_copies_ns=busy[index],
            copies_ns=copies[index],
            kernels=divide_safely(kernels[index], windows[index]),
            with_copies=divide_safely(busy[index], windows[index]),
            idle_by_cause=idle,
        )


def part_figures(lines: Sequence[DeviceTimeline], idle: Sequence[IdlePieces], steps: int) -> DeviceParts:
    """Use by each kind of part over all devices."""
    kinds = DeviceParts.__struct_fields__
    return DeviceParts(**{kind: _use_by_part(lines, idle, kind, steps) for kind in kinds})


def _use_by_part(
    lines: Sequence[DeviceTimeline], idle: Sequence[IdlePieces], kind: str, steps: int
) -> tuple[PartUse, ...]:
    merged: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    for line, pieces in zip(lines, idle, strict=True):
        for name, sums in _sum_parts(line, pieces, kind):
            merged[name].update(sums)
    if set(merged) <= {None, COMMUNICATION}:
        return ()
    causes = CauseTimes.__struct_fields__
    found = []
    for name, sums in merged.items():
        idle_ns = sum(sums[cause] for cause in causes)
        found.append(
            PartUse(
                name=name,
                kernels=sums["kernels"],
                kernel_time_ns=sums["kernel_time_ns"],
                kernels_ns=sums["kernels_ns"],
                busy_ns=sums["busy_ns"],
                idle_ns=idle_ns,
                idle_by_cause=CauseTimes(**{cause: sums[cause] for cause in causes}),
                use=divide_safely(sums["kernels_ns"], sums["busy_ns"] + idle_ns),
                kernels_ms=sums["kernels_ns"] / 1e6 / (steps or 1),
                busy_ms=sums["busy_ns"] / 1e6 / (steps or 1),
                idle_ms=idle_ns / 1e6 / (steps or 1),
                launches=sums["kernels"] / (steps or 1),
            )
        )
    found.sort(key=lambda part: (-(part.busy_ns + part.idle_ns), str(part.name)))
    return tuple(found[:MOST_ROWS])


def _sum_parts(
    line: DeviceTimeline, pieces: IdlePieces, kind: str
) -> Iterator[tuple[str | None, dict[str, int]]]:
    # the root's path is empty; an empty stage, phase or operator is none
    named = pl.col(kind).replace("", ROOT if kind == "module" else None)
    if kind in ("phase", "stage", "module"):  # the layer whose gradient filled a bucket does not exchange it
        named = pl.when(pl.col("communication").fill_null(False)).then(pl.lit(COMMUNICATION)).otherwise(named)
    events = line.events.select("kind", "start_ns", "wall_ns", named.alias("part"))
    numbered = events.select("part").unique(maintain_order=True).with_row_index("group")
    numbered = numbered.with_columns(pl.col("group").cast(pl.Int64))
    events = events.join(numbered, on="part", how="left", nulls_equal=True, maintain_order="left")
    kernels = events.filter(pl.col("kind") == "kernel")
    kernels_ns = measure_by_group(*event_borders(kernels), kernels["group"].to_numpy(), line.window)
    busy_ns = measure_by_group(*event_borders(events), events["group"].to_numpy(), line.window)
    counted = kernels.group_by("group").agg(pl.len(), pl.col("wall_ns").sum())
    counts = {group: (count, summed_ns) for group, count, summed_ns in counted.iter_rows()}
    working = events.filter(pl.col("wall_ns") > 0)["group"].to_numpy()
    owner = np.where(pieces.ender >= 0, working[pieces.ender] if len(working) else -1, -1)
    idle = pieces.sum_by_owner(owner, numbered.height)
    for group, name in numbered.select("group", "part").iter_rows():
        count, summed_ns = counts.get(group, (0, 0))
        yield (
            name,
            {
                "kernels": count,
                "kernel_time_ns": summed_ns,
                "kernels_ns": kernels_ns.get(group, 0),
                "busy_ns": busy_ns.get(group, 0),
                **{cause: getattr(idle[group], cause) for cause in CauseTimes.__struct_fields__},
            },
        )


def break_down_steps(line: DeviceTimeline) -> StepBreakdown | None:
    """The average step in us by role, and each step; None where there are no steps."""
    steps = line.steps
    if len(steps) == 0:
        return None
    left, parts = merge_intervals(steps.starts, steps.ends), {}
    for role, times in _role_times(line).items():
        parts[role] = intersect_intervals(times, left)
        left = subtract_intervals(left, times)
    parts["other"] = left
    per_step = {role: measure_overlap(times, steps.starts, steps.ends) for role, times in parts.items()}
    lengths = steps.ends - steps.starts
    return StepBreakdown(
        steps=len(steps),
        average_step_us=float(lengths.mean()) / 1e3,
        roles=tuple(
            RoleTime(name=role, average_us=float(ns.mean()) / 1e3, share=float(ns.sum() / lengths.sum()))
            for role, ns in per_step.items()
        ),
        per_step=tuple(
            StepRoles(
                step=int(steps.numbers[index]),
                step_us=int(lengths[index]) / 1e3,
                **{f"{role}_us": int(ns[index]) / 1e3 for role, ns in per_step.items()},
            )
            for index in range(len(steps))
        ),
    )


def _role_times(line: DeviceTimeline) -> dict[str, Intervals]:
    """What each role did, on the device and on its host, in order of precedence."""
    return {
        "kernel": line.compute,
        "memcpy": line.copies,
        "memset": line.sets,
        "communication": line.communication,
        "runtime": merge_events(line.host_times("runtime")),
        "loader": merge_events(line.host_times("loader")),
        "cpu": merge_events(line.host_times("operator", "annotation")),
    }

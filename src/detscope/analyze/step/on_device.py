"""Phases, stages and modules on the device's clock, with the host's time of each beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import polars as pl

from detscope.analyze.device.times import DeviceTimes, find_caller
from detscope.analyze.step.columns import median
from detscope.analyze.step.modules import (
    DIRECTIONS,
    OUTSIDE,
    REST,
    ROOT,
    ModuleFigures,
    StageFigures,
    arrange_stages,
    sort_modules,
)
from detscope.analyze.step.steps import PHASES, PhaseFigures, TypicalSteps, share_phases

NOT_MARKED = "not marked yet"
NEGLIGIBLE = 1e-6  # of a phase: what sums of fractions leave
WAYS = ("forward", "backward")


@dataclass(frozen=True)
class TypicalDeviceStep:
    """The device's typical step: how long, and its phases, which add up to it."""

    ms: float
    phases: list[PhaseFigures]

    def find_phase(self, name: str) -> PhaseFigures:
        """A phase by its name."""
        return next(phase for phase in self.phases if phase.name == name)


def time_step(
    told: DeviceTimes, kernels: DeviceTimes | None, typical: TypicalSteps, host: Sequence[PhaseFigures]
) -> TypicalDeviceStep:
    """Phases by their share of the device's typical steps, times its median step.

    Where marks tell the phases and a window of kernels how long the device worked in them, what is left is
    idle: the profiler that sees kernels slows the host down, so that the window's own idle time is not it.
    """
    numbers = told.steps_among(typical.steps)
    step_ms = median(told.list_ms("step", told.steps_among(typical.measured))) or 0.0
    whole = sum(told.list_ms("step", numbers))
    busy = {} if kernels is None or kernels is told else busy_by_phase(kernels, typical)
    beside = {phase.name: phase.ms for phase in host}
    phases = []
    for phase in share_phases(told.steps, numbers, step_ms):
        idle_ms = sum(told.list_ms(phase.name, numbers, "idle_ns")) / whole * step_ms if whole else 0.0
        if phase.name != "data" and phase.name in busy:
            idle_ms = refine_idle(phase.ms, idle_ms, busy[phase.name])
        changed = {"idle_ms": idle_ms, "host_ms": beside.get(phase.name), "clock": "device"}
        phases.append(msgspec.structs.replace(phase, **changed))
    return TypicalDeviceStep(step_ms, phases)


def refine_idle(ms: float, most_ms: float, busy_ms: float) -> float:
    """Idle time by how long the device worked, within what marks leave room for."""
    return min(most_ms, max(0.0, ms - busy_ms))


def busy_by_phase(kernels: DeviceTimes, typical: TypicalSteps) -> dict[str, float]:
    """How long the device worked in each phase, ms per step."""
    steps = kernels.steps_among(typical.steps)
    return {
        phase: (sum(kernels.list_ms(phase, steps)) - sum(kernels.list_ms(phase, steps, "idle_ns")))
        / len(steps)
        for phase in PHASES
    }


def stage_times_ms(
    told: DeviceTimes, typical: TypicalSteps, step: TypicalDeviceStep
) -> dict[str, dict[str, tuple[float, float]]]:
    """Own time and idle time of every stage by phase, scaled as the phase; "" is what lies in no stage."""
    found: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    rows = told.spans.filter((pl.col("kind") == "stage") & pl.col("direction").is_in(list(DIRECTIONS)))
    numbers = sorted(set(told.steps_among(typical.steps)).intersection(rows["step"].to_list()))
    rows = rows.filter(pl.col("step").is_in(numbers)).with_columns(
        phase=pl.col("direction").replace(DIRECTIONS)
    )
    for phase in WAYS if numbers else ():
        wall_ms = sum(told.list_ms(phase, numbers))
        scale = step.find_phase(phase).ms / wall_ms if wall_ms else 0.0
        own = rows.filter(pl.col("phase") == phase).group_by("path")
        for path, wall_ns, idle_ns in (
            own.agg(pl.col("wall_ns").sum(), pl.col("idle_ns").sum()).sort("path").iter_rows()
        ):
            found[path][phase] = (wall_ns / 1e6 * scale, idle_ns / 1e6 * scale)
    return found


def stages_on_device(
    told: DeviceTimes,
    kernels: DeviceTimes | None,
    typical: TypicalSteps,
    step: TypicalDeviceStep,
    host: Sequence[StageFigures],
    order: list[str],
) -> list[StageFigures]:
    """Stages with the device's time; none where it says nothing of stages."""
    times = stage_times_ms(told, typical, step)
    if not any(times):
        return []
    busy: dict[str, float] = {}
    if kernels is not None and kernels is not told:
        worked = stage_busy_ms(kernels, typical)
        busy = {path or REST: ms for path, ms in worked.items()}
    own: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(WAYS, 0.0))
    idle: dict[str, float] = defaultdict(float)
    for path, by_phase in times.items():
        for phase, (ms, idle_ms) in by_phase.items():
            own[path or REST][phase] += ms
            idle[path or REST] += idle_ms
    for row in host:  # kernels tell of every stage, also that the device did nothing for it
        if row.name == REST or told.source == "kernels":
            own.setdefault(row.name, dict.fromkeys(WAYS, 0.0))
    for phase in WAYS:  # what no stage was told of
        whole = step.find_phase(phase).ms
        left = whole - sum(found[phase] for found in own.values())
        if left > NEGLIGIBLE * whole:
            own[REST][phase] += left
    for name in idle:
        if name in busy and name != REST:
            idle[name] = refine_idle(sum(own[name].values()), idle[name], busy[name])
    on_host = {row.name: row.total_ms for row in host}
    return [
        msgspec.structs.replace(
            row,
            clock="device",
            host_ms=on_host.get(row.name),
            idle_ms=sum(
                ms for name, ms in idle.items() if name == row.name or name.startswith(f"{row.name}.")
            ),
        )
        for row in arrange_stages(own, step.ms, order)
    ]


def stage_busy_ms(kernels: DeviceTimes, typical: TypicalSteps) -> dict[str, float]:
    """How long the device worked for each stage, ms per step."""
    steps = kernels.steps_among(typical.steps)
    rows = kernels.spans.filter((pl.col("kind") == "stage") & pl.col("step").is_in(steps))
    worked = rows.group_by("path").agg((pl.col("wall_ns") - pl.col("idle_ns")).sum())
    return {path: ns / 1e6 / len(steps) for path, ns in worked.iter_rows()}


@dataclass(frozen=True)
class _NodeTimes:
    """Times of nodes in ms of the typical step."""

    whole: dict[
        tuple[str, str, str], tuple[float, float]
    ]  # kind, path, direction -> with what it calls, idle
    called: dict[tuple[str, str | None, str], float]  # path, caller, phase -> with what it calls


def modules_on_device(
    told: DeviceTimes,
    typical: TypicalSteps,
    step: TypicalDeviceStep,
    host: Sequence[ModuleFigures],
    spans: pl.DataFrame,
    reasons: Mapping[str, str],
) -> tuple[list[ModuleFigures], float]:
    """Modules with the device's time, and by how many ms own times are more than their phases.

    A module's own time is its time without that of what it calls. What has no time of its own lies in its
    caller's; what lies in no module is a row. `reasons` says why a module has no time.
    """
    times = (
        _time_by_marks(told, typical, step, spans)
        if told.source == "marks"
        else _sum_kernels(told, typical, step)
    )
    if not times.whole and not host:
        return [], 0.0
    inner, outermost = _sum_called(times)
    own: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (kind, path, direction), (ms, idle_ms) in times.whole.items():
        row, phase = own[kind, path], DIRECTIONS[direction]
        row[f"{phase}_ms"] += ms
        row["idle_ms"] += idle_ms
        if direction == "recompute":
            row["recompute_ms"] += ms
    more = 0.0
    for (_, path), row in own.items():
        for phase in (phase for phase in WAYS if f"{phase}_ms" in row):
            left = row[f"{phase}_ms"] - inner.get((path, phase), 0.0)
            row[f"self_{phase}_ms"] = max(0.0, left)
            more += max(0.0, -left)
    for phase in WAYS:
        whole = step.find_phase(phase).ms
        left = whole - outermost.get(phase, 0.0)
        more += max(0.0, -left)
        for prefix in ("", "self_"):
            own["outside", OUTSIDE][f"{prefix}{phase}_ms"] = left if left > NEGLIGIBLE * whole else 0.0
    exact = told.source == "kernels"
    known = {(row.kind, "" if row.path == ROOT else row.path): row for row in host}
    rows = []
    for kind, path in dict.fromkeys([*known, *own]):
        base = known.get((kind, path)) or _make_unseen(kind, path or ROOT)
        on_host = base.total_ms
        told_ms = _tell_module(base, own.get((kind, path), {}), exact)
        why = None if told_ms["total_ms"] is not None else reasons.get(path, NOT_MARKED)
        share = None if told_ms["total_ms"] is None else told_ms["total_ms"] / step.ms if step.ms else 0.0
        rows.append(msgspec.structs.replace(base, **told_ms, share=share, host_ms=on_host, why=why))
    return sort_modules(rows), more if more > NEGLIGIBLE * step.ms else 0.0


def _make_unseen(kind: str, path: str) -> ModuleFigures:
    """A node that the device worked for and the host did not time: files of others have such."""
    return ModuleFigures(
        path=path,
        kind=kind,
        type="",
        stage=None,
        parameters=0,
        calls=0.0,
        forward_ms=None,
        backward_ms=None,
        self_forward_ms=None,
        self_backward_ms=None,
        recompute_ms=None,
        total_ms=None,
        share=None,
    )


def _tell_module(host: ModuleFigures, own: Mapping[str, float], exact: bool) -> dict[str, float | None]:
    """A module's times; a direction that the host saw and marks did not is not known, for kernels it is 0."""
    found: dict[str, float | None] = {}
    for phase in WAYS:
        seen = bool(getattr(host, f"{phase}_ms"))
        for key in (f"{phase}_ms", f"self_{phase}_ms"):
            found[key] = own.get(key, None if seen and not exact else 0.0)
    forward, backward = found["forward_ms"], found["backward_ms"]
    known = forward is not None and backward is not None
    found["total_ms"] = forward + backward if forward is not None and backward is not None else None
    found["idle_ms"] = own.get("idle_ms", 0.0) if known else None
    found["recompute_ms"] = own.get("recompute_ms", 0.0) if backward is not None else None
    return found


def _time_by_marks(
    told: DeviceTimes, typical: TypicalSteps, step: TypicalDeviceStep, spans: pl.DataFrame
) -> _NodeTimes:
    """Modules are marked in turn: the mean of their shares of the phase, each of its own step, so that a
    drift of the machine cancels; times the phase, and the share of steps in which the host saw them run."""
    rows = told.spans.filter(
        ~pl.col("kind").is_in(["stage", "outside"])
        & pl.col("direction").is_in(list(DIRECTIONS))
        & pl.col("step").is_in(told.steps_among(typical.steps))
    ).with_columns(phase=pl.col("direction").replace(DIRECTIONS))
    walls = told.steps.filter(pl.col("phase").is_in(WAYS) & (pl.col("wall_ns") > 0))
    of_phase = walls.select("step", "phase", pl.col("wall_ns").alias("phase_ns"))
    shares = rows.join(of_phase, on=["step", "phase"]).with_columns(
        share=pl.col("wall_ns") / pl.col("phase_ns"), idle=pl.col("idle_ns") / pl.col("phase_ns")
    )
    node = ("kind", "path", "direction")
    turns = shares.group_by(node).agg(pl.col("step").n_unique().alias("turns"))
    ran = _share_of_steps(spans, typical)
    whole: dict[tuple[str, str, str], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    called: dict[tuple[str, str | None, str], float] = defaultdict(float)
    summed = shares.group_by(*node, "parent").agg(pl.col("share").sum(), pl.col("idle").sum())
    for kind, path, direction, parent, share, idle, count in (
        summed.join(turns, on=node).sort(*node, "parent", nulls_last=True).iter_rows()
    ):
        phase = DIRECTIONS[direction]
        scale = step.find_phase(phase).ms * ran.get((kind, path, direction), 1.0) / count
        ms, idle_ms = whole[kind, path, direction]
        whole[kind, path, direction] = (ms + share * scale, idle_ms + idle * scale)
        called[path, parent, phase] += share * scale
    return _NodeTimes(dict(whole), dict(called))


def _share_of_steps(spans: pl.DataFrame, typical: TypicalSteps) -> dict[tuple[str, str, str], float]:
    """In what share of the recorded steps each node ran, as the host saw it."""
    rows = spans.filter(pl.col("step").is_in(typical.steps) & (pl.col("calls") > 0))
    many = rows["step"].n_unique()
    counted = rows.group_by("kind", "path", "direction").agg(pl.col("step").n_unique())
    return {(kind, path, direction): steps / many for kind, path, direction, steps in counted.iter_rows()}


def _sum_kernels(told: DeviceTimes, typical: TypicalSteps, step: TypicalDeviceStep) -> _NodeTimes:
    """Every module in every step: work and idle time, each scaled as that of the phase."""
    steps = told.steps_among(typical.steps)
    whole: dict[tuple[str, str, str], tuple[float, float]] = {}
    called: dict[tuple[str, str | None, str], float] = defaultdict(float)
    rows = told.spans.filter((pl.col("kind") != "stage") & pl.col("step").is_in(steps))
    scales = {}
    for phase in WAYS:
        idle_ms = sum(told.list_ms(phase, steps, "idle_ns"))
        busy_ms = sum(told.list_ms(phase, steps)) - idle_ms
        wanted = step.find_phase(phase)
        wanted_idle = wanted.idle_ms or 0.0
        scales[phase] = (
            (wanted.ms - wanted_idle) / busy_ms / 1e6 if busy_ms else 0.0,
            wanted_idle / idle_ms / 1e6 if idle_ms else 0.0,
        )
    node = ("kind", "path", "parent", "direction")
    summed = rows.group_by(node).agg(pl.col("wall_ns").sum(), pl.col("idle_ns").sum())
    for kind, path, parent, direction, wall_ns, idle_ns in summed.sort(node, nulls_last=True).iter_rows():
        of_busy, of_idle = scales[DIRECTIONS[direction]]
        idle_ms = idle_ns * of_idle
        ms = (wall_ns - idle_ns) * of_busy + idle_ms
        whole[kind, path, direction] = (ms, idle_ms)
        called[path, parent, DIRECTIONS[direction]] += ms
    return _NodeTimes(whole, dict(called))


def _sum_called(times: _NodeTimes) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
    """What nodes with a time call, by caller and phase; and what nobody with a time calls, by phase."""
    timed = {(path, phase) for path, _, phase in times.called}
    callers = {path: parent for path, parent, _ in times.called}
    known = {path for path, _ in timed}
    inner: dict[tuple[str, str], float] = defaultdict(float)
    outermost: dict[str, float] = defaultdict(float)
    for (_, parent, phase), ms in times.called.items():
        caller, passed = parent, set[str]()
        while caller is not None and (caller, phase) not in timed and caller not in passed:
            passed.add(caller)  # it has no time of its own: its caller's holds this one
            caller = find_caller(caller, known, callers)
        if caller is None or (caller, phase) not in timed:
            outermost[phase] += ms
        else:
            inner[caller, phase] += ms
    return inner, outermost


def attributed_to_modules(modules: Sequence[ModuleFigures], backward: PhaseFigures | None) -> float | None:
    """Share of the device's backward phase that belongs to modules."""
    outside = sum(row.backward_ms or 0.0 for row in modules if row.kind == "outside")
    return 1 - outside / backward.ms if modules and backward is not None and backward.ms else None

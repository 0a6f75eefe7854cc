"""Which clock tells where a step's time goes, and what lies between the device's and the host's.

Where the device has a clock of its own, phases, stages and modules are told on it: by the marks in its
queue, or by its kernels, where operators were recorded. The step stays wall time. A CPU has one clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from detscope.analyze.device.blame import HostWait
from detscope.analyze.device.figures import DeviceUse, read_kernel_times
from detscope.analyze.device.times import DeviceTimes, Source, read_marks
from detscope.analyze.device.verdict import WORTH_NAMING, Bound, choose_bound
from detscope.analyze.figure import Clock, Figure
from detscope.analyze.stats import percent
from detscope.analyze.step.columns import median
from detscope.analyze.step.modules import StageFigures
from detscope.analyze.step.on_device import TypicalDeviceStep, busy_by_phase, stage_busy_ms
from detscope.analyze.step.steps import TypicalSteps
from detscope.runs.reader import Run

COLLECTIVES = "collectives"  # the stage in which a queue waits for other ranks
CAUGHT_UP = 0.05  # of the step: a device that ends no later than this after its host has waited for it
MOST_WAITS = 20
_NO_CALLS = "marks do not tell in which calls: record with --level ops"


class ClockIdle(Figure, frozen=True, kw_only=True):
    """Idle time of the device's step by its cause."""

    name: str  # data, host, synchronisation, short_gaps, queued, unknown
    ms: float  # per step
    share: float | None  # of the device's step
    at_most: bool  # marks leave room for so much; kernels tell it exactly


class SideStream(Figure, frozen=True, kw_only=True):
    """What another stream did beside the step."""

    phase: str  # that queued it
    stream: int  # as torch or the recorded file numbers it
    ms: float  # per step


class ClockAgreement(Figure, frozen=True, kw_only=True):
    """A phase or stage by marks and by kernels: both were recorded, in different steps of the run."""

    kind: Literal["phase", "stage"]  # what it is
    name: str  # of the phase or stage
    marks_ms: float  # from mark to mark
    marks_idle_ms: float  # of that, at most idle
    kernels_ms: float  # how long the device worked
    ratio: float | None  # marks over kernels; 1 where the kernels' time is possible by the marks


class Clocks(Figure, frozen=True, kw_only=True):
    """The clock that phases, stages and modules are told on, and what lies between device and host."""

    clock: Clock  # device where it has a clock that could be read, else host
    source: Source | None = None  # of the device's times: marks, or kernels where operators were recorded
    n: int = 0  # steps that the device's times are of
    device_step_ms: float | None = None  # median; the phases add up to it
    busy_ms: float | None = None  # of it; at least, where idle time is at most
    busy_share: float | None = None  # of the device's step
    idle_ms: float | None = None  # of the device's step; at most, where marks tell it
    idle: tuple[ClockIdle, ...] = ()  # by cause
    host_waits_ms: float | None = None  # in calls that return when the device is done, per step
    host_waits: tuple[HostWait, ...] = ()  # in which calls, the longest first
    host_waits_why: str | None = None  # why it is not known
    host_ahead_ms: float | None = None  # how far the host was ahead when it had queued a step, median
    side_streams: tuple[SideStream, ...] = ()  # what ran beside the step
    communication_ms: float | None = None  # per step, that no computation hid
    bound: Bound | None = None  # what limits the step; None: it cannot be told
    evidence: tuple[str, ...] = ()  # figures that it rests on
    marks_per_step: float | None = None  # in the device's queue
    mark_us: float | None = None  # what one costs the host
    marks_share: float | None = None  # of the step, that all of them cost the host
    below_mark: tuple[str, ...] = ()  # modules that take less than their mark costs
    unmarked: tuple[str, ...] = ()  # modules whose turn did not come
    modules_over_ms: float | None = None  # own times of modules are more than their phases by so much
    agreement: tuple[ClockAgreement, ...] = ()  # of marks and kernels
    why: str | None = None  # why a device's clock could not be read


@dataclass(frozen=True)
class RunTimes:
    """What the clocks of a run told; without marks and kernels the host's is the only one."""

    marks: DeviceTimes | None = None
    kernels: DeviceTimes | None = None
    why: str | None = None  # why a device has none of them

    @property
    def told(self) -> DeviceTimes | None:
        """What steps, phases and stages are made of: marks, for the profiler of kernels slows a host."""
        return self.marks or self.kernels

    @property
    def of_modules(self) -> DeviceTimes | None:
        """What modules are made of: kernels know all of them."""
        return self.kernels or self.marks

    @property
    def clock(self) -> Clock:
        """Whose time is told."""
        return "host" if self.told is None else "device"


def is_accelerator(device: str | None) -> bool:
    """Whether a device is one with a queue, and so with a clock, of its own."""
    return bool(device) and str(device).partition(":")[0] not in ("cpu", "meta")


def find_times(run: Run, typical: TypicalSteps, kernels: DeviceTimes | None) -> RunTimes:
    """The clocks of a run, where they tell something of its typical steps; else why not."""
    marks = read_marks(run)
    marks = marks if marks is not None and marks.steps_among(typical.steps) else None
    if marks is not None or kernels is not None:
        return RunTimes(marks, kernels)
    return RunTimes(why=_tell_why(run, typical))


def read_times(run: Run, typical: TypicalSteps) -> RunTimes:
    """The same for those who have not read kernels: they are looked at where there are no marks."""
    found = find_times(run, typical, None)
    return found if found.marks is not None else find_times(run, typical, read_kernel_times(run))


def _tell_why(run: Run, typical: TypicalSteps) -> str | None:
    """Why there is no device's clock; None where there is nothing to tell: on a CPU, in files without one."""
    told = run.info.get("device_clock")
    if told and told.get("why"):
        return str(told["why"])
    if not typical.steps:
        return None
    if run.info.get("verb") == "import":
        has_events = run.table("device_events", ("kind",)).height > 0
        return "no kernel of the file says in which phase it was launched" if has_events else None
    if not is_accelerator(run.info.get("device")):
        return None
    if run.table("steps", ("device_ns",))["device_ns"].drop_nulls().len():
        return "this run was recorded before device times were kept as such"
    return "no marks of the device were recorded"


def tell_reasons(told: Mapping[str, Any] | None) -> dict[str, str]:
    """Why modules have no time by marks: path -> reason."""
    clock = told or {}
    cost = clock.get("mark_cost_ns")
    small = "below its mark" + (f": {cost / 1e3:.1f} us" if cost is not None else "")
    return dict.fromkeys(clock.get("below_mark") or (), small)


def clock_figures(
    times: RunTimes,
    typical: TypicalSteps,
    step: TypicalDeviceStep,
    stages: Sequence[StageFigures],
    use: DeviceUse | None,
    told_clock: Mapping[str, Any] | None,
    communication_share: float | None,
    more_ms: float,
) -> Clocks:
    """Everything between the two clocks, per step.

    `communication_share` is what ranks spent in collectives that nothing hid; kernels know it themselves.
    """
    told, marks = times.told, told_clock or {}
    if told is None:
        return Clocks(clock="host", why=times.why)
    numbers = told.steps_among(typical.steps)
    idle = _list_idle(times, step)
    idle_ms = sum(cause.ms for cause in idle)
    busy_ms = max(0.0, step.ms - idle_ms)
    if times.kernels is not None and use is not None and use.communication is not None:
        communication_share = use.communication.exposed_share
    elif communication_share is None:
        communication_share = _exchange_share(stages, step)
    ahead_ms = median(told.list_ms("step", numbers, "ahead_ns"))
    bound, evidence = _judge_step(times, step, idle, ahead_ms, communication_share, use)
    per_step, cost_ns = marks.get("marks_per_step"), marks.get("mark_cost_ns")
    of_step = None
    if per_step is not None and cost_ns is not None and typical.p50_ms:
        of_step = per_step * cost_ns / 1e6 / typical.p50_ms
    waits = use.host_waits if times.kernels is not None and use is not None else None
    return Clocks(
        clock="device",
        source=(times.of_modules or told).source,
        n=len(numbers),
        device_step_ms=step.ms,
        busy_ms=busy_ms,
        busy_share=busy_ms / step.ms if step.ms else None,
        idle_ms=idle_ms,
        idle=idle,
        host_waits_ms=None if waits is None else sum(wait.ms for wait in waits),
        host_waits=() if waits is None else waits[:MOST_WAITS],
        host_waits_why=_NO_CALLS if waits is None else None,
        host_ahead_ms=ahead_ms,
        side_streams=_list_side_streams(told, numbers),
        communication_ms=None if communication_share is None else communication_share * step.ms,
        bound=bound,
        evidence=evidence,
        marks_per_step=per_step,
        mark_us=None if cost_ns is None else cost_ns / 1e3,
        marks_share=of_step,
        below_mark=tuple(marks.get("below_mark") or ()),
        unmarked=tuple(marks.get("unmarked") or ()),
        modules_over_ms=more_ms or None,
        agreement=tuple(_compare_sources(times, typical, step, stages)),
    )


def _exchange_share(stages: Sequence[StageFigures], step: TypicalDeviceStep) -> float | None:
    """By marks: what the device's queue waited for other ranks; None where none are known."""
    waited_ms = [stage.total_ms for stage in stages if stage.name == COLLECTIVES]
    return sum(waited_ms) / step.ms if waited_ms and step.ms else None


def _list_idle(times: RunTimes, step: TypicalDeviceStep) -> tuple[ClockIdle, ...]:
    """The waiting for data, and the rest: by cause where kernels tell it, else at most the host's."""
    data_ms = step.find_phase("data").ms
    rest_ms = sum(phase.idle_ms or 0.0 for phase in step.phases if phase.name != "data")
    causes = {"host": 1.0}
    if times.kernels is not None and times.kernels.causes is not None:
        found = times.kernels.causes
        lost = {name: getattr(found, f"{name}_ns") for name in _CAUSES}
        whole = sum(lost.values())
        causes = {name: ns / whole for name, ns in lost.items()} if whole else causes
    parts = {"data": data_ms, **{name: share * rest_ms for name, share in causes.items()}}
    return tuple(
        ClockIdle(
            name=name,
            ms=ms,
            share=ms / step.ms if step.ms else None,
            at_most=times.kernels is None and name != "data",
        )
        for name, ms in parts.items()
    )


_CAUSES = ("host", "synchronisation", "short_gaps", "queued", "unknown")


def _judge_step(
    times: RunTimes,
    step: TypicalDeviceStep,
    idle: Sequence[ClockIdle],
    ahead_ms: float | None,
    communication_share: float | None,
    use: DeviceUse | None,
) -> tuple[Bound | None, tuple[str, ...]]:
    """What limits the step, in a word, and the figures it rests on."""
    if times.marks is None and use is not None and use.verdict is not None:
        return use.verdict.word, use.verdict.evidence  # files of others, and windows of operators alone
    shares = {cause.name: cause.share or 0.0 for cause in idle}
    waits = shares.pop("data", 0.0)
    late = sum(shares.values())
    exposed = communication_share or 0.0
    busy = max(0.0, 1 - waits - late - exposed)
    bound = choose_bound({"input-bound": waits, "host-bound": late, "communication-bound": exposed}, busy)
    at_most = any(cause.at_most for cause in idle)
    if (
        at_most
        and bound == "host-bound"
        and ((ahead_ms or 0.0) > CAUGHT_UP * step.ms or waits >= WORTH_NAMING or exposed >= WORTH_NAMING)
    ):
        bound = "mixed"  # so much idle time is possible, not proved: the host was ahead when the step ended
    most, least = ("at most ", "at least ") if at_most else ("", "")
    evidence = [
        f"the device works {least}{percent(busy + exposed)} of its step of {step.ms:.1f} ms",
        f"it waits for data {percent(waits)}",
        f"for the host {most}{percent(late)}",
    ]
    if communication_share is not None:
        evidence.append(f"exchange that nothing hides takes {percent(exposed)}")
    if ahead_ms is not None:
        evidence.append(f"the host is {max(0.0, ahead_ms):.1f} ms ahead when it has queued a step")
    return bound, tuple(evidence)


def _list_side_streams(told: DeviceTimes, numbers: Sequence[int]) -> tuple[SideStream, ...]:
    rows = told.beside.filter(pl.col("step").is_in(list(numbers)) & (pl.col("phase") != "step"))
    summed = rows.group_by("phase", "stream").agg(pl.col("wall_ns").sum()).sort("phase", "stream")
    return tuple(
        SideStream(phase=phase, stream=stream or 0, ms=ns / 1e6 / len(numbers))
        for phase, stream, ns in summed.iter_rows()
    )


def _compare_sources(
    times: RunTimes, typical: TypicalSteps, step: TypicalDeviceStep, stages: Sequence[StageFigures]
) -> list[ClockAgreement]:
    """Marks of recorded steps beside kernels of operator steps."""
    marks, kernels = times.marks, times.kernels
    if marks is None or kernels is None:
        return []
    numbers = marks.steps_among(typical.steps)
    found = []
    for name, worked in busy_by_phase(kernels, typical).items():
        idle_ms = sum(marks.list_ms(name, numbers, "idle_ns")) / len(numbers)
        if name != "data":
            found.append(_hold_against("phase", name, step.find_phase(name).ms, idle_ms, worked))
    worked_for = stage_busy_ms(kernels, typical)
    rows = marks.spans.filter((pl.col("kind") == "stage") & pl.col("step").is_in(numbers))
    idle = dict(rows.group_by("path").agg(pl.col("idle_ns").sum()).iter_rows())
    for stage in stages:
        if stage.name in worked_for:
            most_ms = idle.get(stage.name, 0) / 1e6 / len(numbers)
            found.append(_hold_against("stage", stage.name, stage.self_ms, most_ms, worked_for[stage.name]))
    return found


def _hold_against(
    kind: Literal["phase", "stage"], name: str, ms: float, idle_ms: float, worked_ms: float
) -> ClockAgreement:
    """By marks the device worked from `ms - idle_ms` to `ms`: the nearest of that over the kernels' time."""
    nearest = min(max(worked_ms, ms - idle_ms), ms)
    ratio = nearest / worked_ms if worked_ms else None
    return ClockAgreement(
        kind=kind, name=name, marks_ms=ms, marks_idle_ms=idle_ms, kernels_ms=worked_ms, ratio=ratio
    )

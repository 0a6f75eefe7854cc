"""All figures of device use of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import polars as pl

from detscope.analyze.device.blame import HostWait, IdleBlame, blame_idle, rank_blame, sum_host_waits
from detscope.analyze.device.cores import CoreUse, core_figures
from detscope.analyze.device.honesty import DeviceHonesty, count_flaws, explain_absence
from detscope.analyze.device.host import BlockingCalls, find_blocking_calls
from detscope.analyze.device.idle import CauseTimes, IdlePieces, IdleTime, find_idle_pieces, idle_figures
from detscope.analyze.device.kernels import (
    DeviceEstimate,
    KernelFigures,
    Launches,
    count_launches,
    estimate_occupancy,
    estimate_sm_efficiency,
    estimate_tensor_share,
    kernel_figures,
)
from detscope.analyze.device.parts import (
    DEFINITION,
    DeviceParts,
    DeviceStep,
    RoleTime,
    StepBreakdown,
    break_down_steps,
    measure_steps,
    part_figures,
)
from detscope.analyze.device.timeline import DeviceTimeline, build_timelines
from detscope.analyze.device.times import DeviceTimes, measure_kernels
from detscope.analyze.device.transfers import (
    Copies,
    DeviceCommunication,
    DeviceStraggler,
    communication_figures,
    copy_figures,
    find_device_straggler,
)
from detscope.analyze.device.utilisation import (
    BusyTimes,
    DeviceSpan,
    Utilisation,
    measure_span,
    measure_use,
    sum_uses,
)
from detscope.analyze.device.verdict import DeviceVerdict, describe_launches, judge_device
from detscope.analyze.figure import Figure
from detscope.runs.reader import Run
from detscope.runs.schema import TABLES

# what no figure needs is not read
DEVICE_COLUMNS = tuple(name for name in TABLES["device_events"] if name not in ("launch_thread", "step"))
HOST_COLUMNS = tuple(name for name in TABLES["host_events"] if name != "sequence")


class DeviceFigures(BusyTimes, frozen=True, kw_only=True):
    """One device of one rank."""

    rank: int  # from 0
    device: int  # its number
    streams: int  # with work
    steps: int  # of its window
    events: int  # kernels, copies and memory sets
    idle_by_cause: CauseTimes
    span: DeviceSpan
    average_step_us: float | None  # as in the breakdown
    roles: tuple[RoleTime, ...]
    sm_efficiency_estimated: float | None  # share of the window
    occupancy_estimated: float | None  # share of what fits


class DeviceUse(Figure, frozen=True, kw_only=True):
    """How busy the devices were, how well they were used, and who made them wait.

    Without a time line all but `cores` is None or empty, and `why` says so.
    """

    why: str | None = None  # why there is no time line
    steps: int | None = None  # of the window; None where there are no step marks
    devices: tuple[DeviceFigures, ...] = ()
    utilisation: Utilisation | None = None
    sm_efficiency: DeviceEstimate | None = None
    occupancy: DeviceEstimate | None = None
    tensor_cores_by_name: DeviceEstimate | None = None
    idle: IdleTime | None = None
    blame: tuple[IdleBlame, ...] = ()  # the most costly first
    host_waits: tuple[HostWait, ...] = ()  # of the first rank, the longest first
    copies: Copies | None = None
    communication: DeviceCommunication | None = None
    straggler: DeviceStraggler | None = None  # None of one rank
    kernels: tuple[KernelFigures, ...] = ()  # the longest first
    launches: Launches | None = None
    cores: CoreUse | None = None
    per_step: tuple[DeviceStep, ...] = ()
    per: DeviceParts = DeviceParts()
    per_definition: str = DEFINITION  # of the figures by part
    breakdown: StepBreakdown | None = None  # of the first device; None where there are no steps
    honesty: DeviceHonesty | None = None
    verdict: DeviceVerdict | None = None


@dataclass(frozen=True)
class DeviceLines:
    """What every device did and when it stood idle; what its rank's host waited in."""

    lines: list[DeviceTimeline]
    calls: dict[int, BlockingCalls]  # by rank
    pieces: list[IdlePieces]  # of each line


def find_lines(
    device_events: pl.DataFrame, host_events: pl.DataFrame, steps: pl.DataFrame | None = None
) -> DeviceLines:
    """Devices with events, in the order of ranks."""
    lines = [line for line in build_timelines(device_events, host_events, steps) if line.events.height]
    calls = {line.rank: find_blocking_calls(line.host, _events_of_rank(lines, line.rank)) for line in lines}
    return DeviceLines(lines, calls, [find_idle_pieces(line, calls[line.rank]) for line in lines])


def device_figures(
    device_events: pl.DataFrame,
    host_events: pl.DataFrame,
    kernel_metrics: pl.DataFrame,
    steps: pl.DataFrame | None = None,
    dropped: Mapping[str, int] | None = None,
    found: DeviceLines | None = None,
) -> DeviceUse | None:
    """Everything about the device; None where a run has none of these tables."""
    found = found or find_lines(device_events, host_events, steps)
    lines, calls, pieces = found.lines, found.calls, found.pieces
    if not lines:
        if not kernel_metrics.height:
            return None
        why = "no time line: counters of single kernels only"
        return DeviceUse(why=why, cores=core_figures(kernel_metrics, None))
    count = max(len(line.steps) for line in lines)
    uses = [measure_use(line) for line in lines]
    use = sum_uses(uses, lines)
    accounts = [blame_idle(line, calls[line.rank], own) for line, own in zip(lines, pieces, strict=True)]
    blame = rank_blame(accounts, count, use.with_copies_window_ns)
    kernels = pl.concat([line.kernel_events for line in lines])
    idle = idle_figures(pieces, use.with_copies_window_ns)
    copies, communication = copy_figures(lines, count), communication_figures(lines, kernels)
    launches, efficiency = count_launches(kernels, count), estimate_sm_efficiency(lines)
    breakdowns = [break_down_steps(line) for line in lines]
    return DeviceUse(
        steps=count or None,
        devices=tuple(map(_figures_of_one, lines, uses, pieces, breakdowns)),
        utilisation=use,
        sm_efficiency=efficiency,
        occupancy=estimate_occupancy(kernels),
        tensor_cores_by_name=estimate_tensor_share(kernels),
        idle=idle,
        blame=blame,
        host_waits=sum_host_waits(lines[0], calls[lines[0].rank], len(lines[0].steps)),
        copies=copies,
        communication=communication,
        straggler=find_device_straggler(lines),
        kernels=kernel_figures(kernels, count),
        launches=launches,
        cores=core_figures(kernel_metrics, use.kernels),
        per_step=tuple(chain.from_iterable(map(measure_steps, lines, pieces))),
        per=part_figures(lines, pieces, count),
        breakdown=breakdowns[0],
        honesty=count_flaws(lines, device_events, dropped or {}),
        verdict=judge_device(
            use, idle, blame, copies, communication, describe_launches(launches, count > 0), efficiency.value
        ),
    )


def _events_of_rank(lines: Sequence[DeviceTimeline], rank: int) -> pl.DataFrame:
    own = [line.events for line in lines if line.rank == rank]
    return own[0] if len(own) == 1 else pl.concat(own)


def _figures_of_one(
    line: DeviceTimeline, use: BusyTimes, pieces: IdlePieces, breakdown: StepBreakdown | None
) -> DeviceFigures:
    return DeviceFigures(
        **msgspec.structs.asdict(use),
        rank=line.rank,
        device=line.device,
        streams=line.events["stream"].n_unique(),
        steps=len(line.steps),
        events=line.events.height,
        idle_by_cause=pieces.sum_causes(),
        span=measure_span(line),
        average_step_us=breakdown.average_step_us if breakdown else None,
        roles=breakdown.roles if breakdown else (),
        sm_efficiency_estimated=estimate_sm_efficiency([line]).value,
        occupancy_estimated=estimate_occupancy(line.kernel_events).value,
    )


def read_device_use(run: Run, hosts: pl.DataFrame) -> tuple[DeviceUse | None, DeviceTimes | None]:
    """Device use of a run and its steps by kernels; None where nothing was recorded of a device.

    A function of its own: the device's events are many, and nothing after this needs them.
    """
    events, metrics, steps = (
        run.table("device_events", DEVICE_COLUMNS),
        run.table("kernel_metrics"),
        run.table("steps"),
    )
    lines = find_lines(events, hosts, steps)
    found = device_figures(events, hosts, metrics, steps, _sum_dropped(run.info), lines)
    if found is None and run.info.get("verb") == "import":
        found = DeviceUse(why=explain_absence(run.info))
    return found, _time_by_kernels(run, lines)


def read_kernel_times(run: Run) -> DeviceTimes | None:
    """Steps of a run by kernels, without the figures of device use."""
    events = run.table("device_events", DEVICE_COLUMNS)
    if not events.height:
        return None
    return _time_by_kernels(
        run, find_lines(events, run.table("host_events", HOST_COLUMNS), run.table("steps"))
    )


def _time_by_kernels(run: Run, found: DeviceLines) -> DeviceTimes | None:
    """Of the first rank the device that did most: `steps` and `spans` are this rank's too."""
    if not found.lines:
        return None
    first = [number for number, line in enumerate(found.lines) if line.rank == found.lines[0].rank]
    busiest = max(first, key=lambda number: found.lines[number].busy.length_ns)
    nodes = run.table("nodes", ("kind", "path"))
    kinds = {path: kind for kind, path in nodes.iter_rows() if kind != "module"}
    kinds |= dict.fromkeys(nodes.filter(pl.col("kind") == "module")["path"].to_list(), "module")
    seen = run.table("device_spans", ("kind", "path", "parent")).filter(pl.col("kind") != "stage")
    callers = dict(
        seen.unique("path", keep="first", maintain_order=True).select("path", "parent").iter_rows()
    )
    return measure_kernels(found.lines[busiest], found.pieces[busiest], kinds, callers)


def _sum_dropped(info: Mapping[str, Any]) -> Mapping[str, int]:
    """Counts of what the reader of each file dropped, clipped or could not link."""
    total: Counter[str] = Counter()
    for source in info.get("sources") or []:
        total.update(source.get("counts") or {})
    return total

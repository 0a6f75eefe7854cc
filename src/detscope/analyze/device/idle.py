"""Why the device stood still: every gap in its work gets one cause, or is shared with waiting for data.

A gap lies between two events of the device and ends with the event that was launched late or early:

- short gaps: the call that launched it had returned before the gap began, and the gap is short: the
  device itself took this time
- queued: the same, but the gap is long: the device waited for another stream, device or rank
- otherwise the part of the gap before the launch in which the host was in its loader: data wait
- the rest: synchronisation, if at the gap's begin a host call was waiting for the device and the launch
  came after it returned; else the host was late
- unknown: the event that ended the gap has no launch record
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from detscope.analyze.device.host import BlockingCalls
from detscope.analyze.device.intervals import (
    Intervals,
    Times,
    cut_intervals,
    find_gaps,
    intersect_intervals,
    measure_overlap,
)
from detscope.analyze.device.timeline import DeviceTimeline, event_borders, merge_events
from detscope.analyze.device.utilisation import divide_safely
from detscope.analyze.figure import Figure

CAUSES = {
    "host": "the launch of the next event came late and nothing else explains it",
    "synchronisation": "a host call was waiting for the device when the gap began, and the next launch came"
    " after it returned",
    "data": "the host was in its loader, before the next launch",
    "short_gaps": "the next event was queued; at most 20 us: the device's own time between events",
    "queued": "the next event was queued; longer: the device waited for another stream, device or rank",
    "unknown": "the next event has no launch record",
}
HOST, SYNCHRONISATION, DATA, SHORT, QUEUED, UNKNOWN = range(6)
SHORT_GAP_NS = 20_000
LATEST = np.iinfo(np.int64).max


class CauseTimes(Figure, frozen=True, kw_only=True):
    """Idle time by its cause."""

    host_ns: int  # the next launch came late
    synchronisation_ns: int  # the host waited for the device
    data_ns: int  # the host was in its loader
    short_gaps_ns: int  # between queued events, at most 20 us
    queued_ns: int  # queued, and waiting for something else
    unknown_ns: int  # no launch record


class IdleCause(Figure, frozen=True, kw_only=True):
    """Idle time of one cause, all devices together."""

    name: str  # host, synchronisation, data, short_gaps, queued, unknown
    share: float | None  # of the window
    idle_ns: int  # in the window
    definition: str  # when it is this cause


class IdleTime(Figure, frozen=True, kw_only=True):
    """The window less all that the device did."""

    causes: tuple[IdleCause, ...]
    busy: float | None  # what is left of the window
    total: float | None  # share of the window
    total_ns: int  # of all causes
    window_ns: int  # of all devices
    gaps: int  # stretches of idle time


@dataclass(frozen=True)
class IdlePieces:
    """Stretches in which the device did nothing; none crosses the border of a step."""

    starts: Times
    ends: Times
    cause: Times  # index into CAUSES, of what is not data wait
    data_ns: Times
    ender: Times  # row of the event that ended the gap; -1: none did
    call: Times  # number of the blocking call; -1: none
    step: Times  # index of the step; -1 where there are no steps

    @property
    def lengths(self) -> Times:
        """Length of each."""
        return self.ends - self.starts

    def sum_causes(self) -> CauseTimes:
        """Idle time by cause."""
        return self.sum_by_owner(np.zeros(len(self.starts), np.int64), 1)[0]

    def sum_by_owner(self, owner: Times, owners: int) -> list[CauseTimes]:
        """Idle time by cause of each owner; pieces with another number belong to none of them."""
        sums = np.zeros((owners, len(CAUSES)), np.int64)
        here = (owner >= 0) & (owner < owners)
        own, data = owner[here], self.data_ns[here]
        np.add.at(sums, (own, self.cause[here]), self.lengths[here] - data)
        np.add.at(sums, (own, np.full(len(own), DATA)), data)
        names = CauseTimes.__struct_fields__
        return [CauseTimes(**dict(zip(names, row, strict=True))) for row in sums.tolist()]


def idle_figures(pieces: Sequence[IdlePieces], window_ns: int) -> IdleTime:
    """Idle time of all devices."""
    times = [own.sum_causes() for own in pieces]
    totals = {cause: sum(getattr(own, f"{cause}_ns") for own in times) for cause in CAUSES}
    whole = sum(totals.values())
    causes = tuple(
        IdleCause(name=cause, share=divide_safely(ns, window_ns), idle_ns=ns, definition=CAUSES[cause])
        for cause, ns in totals.items()
    )
    return IdleTime(
        causes=causes,
        busy=1 - whole / window_ns if window_ns else None,
        total=divide_safely(whole, window_ns),
        total_ns=whole,
        window_ns=window_ns,
        gaps=sum(len(own.starts) for own in pieces),
    )


def find_idle_pieces(line: DeviceTimeline, calls: BlockingCalls) -> IdlePieces:
    """All idle stretches of the window with their causes."""
    busy, window = line.busy, line.window
    columns = ("start_ns", "wall_ns", "launch_ns", "launch_wall_ns")
    working = line.events.select(columns).filter(pl.col("wall_ns") > 0)
    begins, _ = event_borders(working)
    launches = _read_times(working, pl.col("launch_ns"))
    launched = _read_times(working, pl.col("launch_ns") + pl.col("launch_wall_ns").fill_null(0))
    whole = _find_all_gaps(busy, window)
    pieces = cut_intervals(intersect_intervals(whole, window), line.steps.starts)
    gap = np.searchsorted(whole.starts, pieces.starts, side="right") - 1
    begun = whole.starts[gap]
    ender = np.searchsorted(begins, whole.ends[gap], side="left")
    has_ender = ender < len(begins)
    ender = np.where(has_ender, ender, -1)
    launch = np.where(has_ender, launches[ender] if len(launches) else LATEST, LATEST)
    queued = has_ender & ((launched[ender] if len(launched) else LATEST) <= begun)
    call = _find_call(calls, begun, launch)
    short = whole.ends[gap] - begun <= SHORT_GAP_NS
    cause = np.select(
        [has_ender & (launch == LATEST), queued & short, queued, call >= 0],
        [UNKNOWN, SHORT, QUEUED, SYNCHRONISATION],
        HOST,
    )
    loader = merge_events(line.host_times("loader"))
    until = np.minimum(launch, pieces.ends)
    data = np.where(
        (cause == HOST) | (cause == SYNCHRONISATION),
        measure_overlap(loader, pieces.starts, np.maximum(until, pieces.starts)),
        0,
    )
    step = np.searchsorted(line.steps.starts, pieces.starts, side="right") - 1
    return IdlePieces(
        pieces.starts, pieces.ends, cause, data, ender, np.where(cause == SYNCHRONISATION, call, -1), step
    )


def _read_times(frame: pl.DataFrame, expression: pl.Expr) -> Times:
    """A column of times; a time that is missing lies after all others."""
    return frame.select(expression.fill_null(LATEST)).to_series().to_numpy().astype(np.int64)


def _find_all_gaps(busy: Intervals, window: Intervals) -> Intervals:
    """Between all events, whether or not the window covers them: a gap keeps its cause when it is cut."""
    if len(window) == 0:
        return window
    start, end = int(window.starts[0]), int(window.ends[-1])
    if len(busy):
        start, end = min(start, int(busy.starts[0])), max(end, int(busy.ends[-1]))
    return find_gaps(busy, start, end)


def _find_call(calls: BlockingCalls, begun: Times, launch: Times) -> Times:
    """The call that was waiting when a gap began and returned before the launch; the last to return."""
    best = np.full(len(begun), -1)
    best_end = np.full(len(begun), -1)
    if len(calls) == 0:
        return best
    keys = calls.rows.select(pl.struct("process", "thread").rank("dense")).to_series().to_numpy()
    for key in np.unique(keys):
        own = np.flatnonzero(keys == key)
        starts = calls.starts[own]
        index = np.searchsorted(starts, begun, side="right") - 1
        candidate = own[np.maximum(index, 0)]
        covers = (index >= 0) & (calls.ends[candidate] >= begun) & (calls.ends[candidate] <= launch)
        better = covers & (calls.ends[candidate] > best_end)
        best = np.where(better, candidate, best)
        best_end = np.where(better, calls.ends[candidate], best_end)
    return best

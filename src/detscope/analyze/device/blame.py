"""Who made the device wait: idle time by the call that blocked, the loader, or the late launch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from detscope.analyze.device.host import BlockingCalls, find_places, name_call
from detscope.analyze.device.idle import HOST, SYNCHRONISATION, IdlePieces
from detscope.analyze.device.intervals import measure_overlap, merge_intervals
from detscope.analyze.device.kernels import shorten_name
from detscope.analyze.device.timeline import DeviceTimeline, event_borders
from detscope.analyze.device.utilisation import divide_safely
from detscope.analyze.figure import Figure

MOST_ROWS = 100


class IdleBlame(Figure, frozen=True, kw_only=True):
    """Idle time that one call in one place caused."""

    cause: str  # synchronisation, data or host
    call: str  # as people write it: item, nonzero, to("cpu"), late launch of ...
    operator: str | None  # around the call
    runtime: str | None  # the runtime's call that waited
    module: str | None  # path of the module
    inside: str | None  # the annotation around it
    line: str | None  # of code
    idle_ns: int  # in all
    idle_ms: float  # in all
    idle_ms_per_step: float | None  # None where there are no steps
    share: float | None  # of the window
    gaps: int  # stretches of idle time
    calls: int  # that caused them
    host_wait_ns: int | None  # how long the host waited in it


class HostWait(Figure, frozen=True, kw_only=True):
    """A call in one place in which the host waited until the device was done."""

    call: str  # as people write it: item, nonzero, to("cpu"), synchronize
    runtime: str  # the runtime's call
    module: str | None  # path of the module
    line: str | None  # of code
    calls: int  # in all
    wait_ns: int  # in all
    ms: float  # per step where there are steps, else in all


@dataclass(frozen=True)
class Culprit:
    """One call in one place."""

    cause: str
    call: str
    runtime: str | None
    operator: str | None
    module: str | None
    annotation: str | None
    stack: str | None


@dataclass
class _Account:
    idle_ns: int = 0
    gaps: int = 0
    calls: int = 0
    host_wait_ns: int = 0


Accounts = dict[Culprit, _Account]


def blame_idle(line: DeviceTimeline, calls: BlockingCalls, pieces: IdlePieces) -> Accounts:
    """Idle time of one device by culprit; what the device itself or nobody known caused is left out."""
    found: Accounts = defaultdict(_Account)
    _add_synchronisations(found, line, calls, pieces)
    _add_loader(found, line, pieces)
    _add_late_launches(found, line, pieces)
    return found


def _add_synchronisations(
    found: Accounts, line: DeviceTimeline, calls: BlockingCalls, pieces: IdlePieces
) -> None:
    rest = pieces.lengths - pieces.data_ns
    chosen = np.flatnonzero((pieces.cause == SYNCHRONISATION) & (rest > 0))
    if len(chosen) == 0:
        return
    numbers, which = np.unique(pieces.call[chosen], return_inverse=True)
    idle = np.bincount(which, weights=rest[chosen]).astype(np.int64)
    counts = np.bincount(which)
    named = _name_culprits(line, calls.rows[numbers.tolist()])
    for (culprit, wait_ns), idle_ns, gap_count in zip(named, idle.tolist(), counts.tolist(), strict=True):
        account = found[culprit]
        account.idle_ns += idle_ns
        account.gaps += gap_count
        account.calls += 1
        account.host_wait_ns += wait_ns


def _name_culprits(line: DeviceTimeline, rows: pl.DataFrame) -> Iterator[tuple[Culprit, int]]:
    """Each call that waited as people write it, with the place it was made in, and how long it took."""
    for row, place in zip(rows.iter_rows(named=True), find_places(line.host, rows), strict=True):
        # the last copy of the thread only counts if the same operator made it
        copied = row["copy_ns"] is not None and row["copy_ns"] >= (place.operator_ns or row["start_ns"])
        culprit = Culprit(
            "synchronisation",
            name_call(place.operator, row["name"], row["copy"] if copied else None),
            row["name"],
            place.operator,
            (row["of_module"] if copied else None) or place.module,
            place.annotation,
            place.stack,
        )
        yield culprit, row["wall_ns"]


def sum_host_waits(line: DeviceTimeline, calls: BlockingCalls, steps: int) -> tuple[HostWait, ...]:
    """Calls of one host that waited for its device inside of the window, the longest first.

    Where there are steps, those of the host: the wait by which a profiler's session ends comes after them.
    """
    own = merge_intervals(line.steps.host_starts, line.steps.host_ends) if line.has_steps else line.window
    inside = measure_overlap(own, calls.starts, calls.ends) > 0
    found: Accounts = defaultdict(_Account)
    for culprit, wait_ns in _name_culprits(line, calls.rows.filter(pl.Series(inside))):
        found[culprit].calls += 1
        found[culprit].host_wait_ns += wait_ns
    ranked = sorted(found.items(), key=lambda item: (-item[1].host_wait_ns, item[0].call))
    return tuple(
        HostWait(
            call=culprit.call,
            runtime=culprit.runtime or "",
            module=culprit.module,
            line=culprit.stack,
            calls=account.calls,
            wait_ns=account.host_wait_ns,
            ms=account.host_wait_ns / 1e6 / (steps or 1),
        )
        for culprit, account in ranked[:MOST_ROWS]
    )


def _add_loader(found: Accounts, line: DeviceTimeline, pieces: IdlePieces) -> None:
    """Each piece goes to the loader event that was running when it began, else to the first after."""
    chosen = np.flatnonzero(pieces.data_ns > 0)
    loader = line.host.filter(pl.col("kind") == "loader").sort("start_ns", maintain_order=True)
    if len(chosen) == 0:
        return
    starts, ends = event_borders(loader)
    order = np.argsort(ends, kind="stable")
    index = order[np.searchsorted(ends[order], pieces.starts[chosen], side="right").clip(max=len(order) - 1)]
    names, stacks = loader["name"].to_list(), loader["stack"].to_list()
    walls = (ends - starts).tolist()
    seen: set[int] = set()
    for piece, event in zip(chosen.tolist(), index.tolist(), strict=True):
        account = found[Culprit("data", names[event], None, None, None, None, stacks[event])]
        account.idle_ns += int(pieces.data_ns[piece])
        account.gaps += 1
        if event not in seen:
            seen.add(event)
            account.calls += 1
            account.host_wait_ns += walls[event]


def _add_late_launches(found: Accounts, line: DeviceTimeline, pieces: IdlePieces) -> None:
    """Host lateness, by the operator whose launch ended the gap."""
    rest = pieces.lengths - pieces.data_ns
    chosen = np.flatnonzero((pieces.cause == HOST) & (rest > 0))
    enders = pieces.ender[chosen]
    columns = ("operator", "name", "module", "kind")
    working = np.flatnonzero((line.events["wall_ns"] > 0).fill_null(False).to_numpy())
    ended = enders >= 0
    rows = pl.Series(working[enders[ended]], dtype=pl.UInt32)
    late = line.events.select(pl.col(columns).gather(rows)).with_columns(
        pl.Series("idle_ns", rest[chosen][ended])
    )
    # kernels without an operator go by their names
    late = late.with_columns(pl.when(pl.col("operator").is_null()).then("name").alias("name"))
    grouped = late.group_by("operator", "name", "module", "kind").agg(pl.col("idle_ns").sum(), pl.len())
    for operator, name, module, kind, idle_ns, count in grouped.iter_rows():
        label = operator or (shorten_name(name) if kind == "kernel" else kind)
        _add_idle(
            found,
            Culprit("host", f"late launch of {label}", None, operator, module, None, None),
            idle_ns,
            count,
        )
    if not ended.all():
        last = Culprit("host", "no more launches", None, None, None, None, None)
        _add_idle(found, last, int(rest[chosen][~ended].sum()), int((~ended).sum()))


def _add_idle(found: Accounts, culprit: Culprit, idle_ns: int, count: int) -> None:
    account = found[culprit]
    account.idle_ns += idle_ns
    account.gaps += count
    account.calls += count


def rank_blame(per_device: list[Accounts], steps: int, window_ns: int) -> tuple[IdleBlame, ...]:
    """All devices together, the most costly first; cost per step where there are steps."""
    merged: Accounts = defaultdict(_Account)
    for found in per_device:
        for culprit, account in found.items():
            total = merged[culprit]
            total.idle_ns += account.idle_ns
            total.gaps += account.gaps
            total.calls += account.calls
            total.host_wait_ns += account.host_wait_ns
    ranked = sorted(merged.items(), key=lambda item: (-item[1].idle_ns, item[0].call, str(item[0].module)))
    return tuple(
        IdleBlame(
            cause=culprit.cause,
            call=culprit.call,
            operator=culprit.operator,
            runtime=culprit.runtime,
            module=culprit.module,
            inside=culprit.annotation,
            line=culprit.stack,
            idle_ns=account.idle_ns,
            idle_ms=account.idle_ns / 1e6,
            idle_ms_per_step=divide_safely(account.idle_ns / 1e6, steps),
            share=divide_safely(account.idle_ns, window_ns),
            gaps=account.gaps,
            calls=account.calls,
            host_wait_ns=account.host_wait_ns if culprit.cause != "host" else None,
        )
        for culprit, account in ranked[:MOST_ROWS]
    )

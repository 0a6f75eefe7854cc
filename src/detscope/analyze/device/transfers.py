"""What is not computing: copies, memory sets, communication between devices; how much no kernel hid."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import polars as pl

from detscope.analyze.device.intervals import intersect_intervals, measure_by_group, subtract_intervals
from detscope.analyze.device.timeline import DeviceTimeline, event_borders
from detscope.analyze.device.utilisation import divide_safely
from detscope.analyze.figure import Figure

STRAGGLER_SPREAD = 0.1  # of the window: below, ranks count as even


class CopyRow(Figure, frozen=True, kw_only=True):
    """Copies of one direction from or to one kind of host memory."""

    direction: str  # HtoD, DtoH, ..., or "set"
    memory: str | None  # pageable or pinned, where the file says it
    count: int  # in all
    per_step: float | None  # how many
    bytes: int | None  # in all, where sizes are known
    total_ns: int  # summed
    gb_per_s: float | None  # over the time of those with a known size
    busy_ns: int  # union
    exposed_ns: int  # union, while no kernel ran


class Copies(Figure, frozen=True, kw_only=True):
    """All copies together."""

    count: int  # without memory sets
    busy_ns: int  # union
    exposed_ns: int  # union, while no kernel ran
    rows: tuple[CopyRow, ...]  # memory sets as well, the longest first


class CommunicationKernel(Figure, frozen=True, kw_only=True):
    """A kernel of a collective operation."""

    name: str  # what it is called
    count: int  # launches
    total_ns: int  # summed


class DeviceCommunication(Figure, frozen=True, kw_only=True):
    """Kernels of collective operations."""

    kernels: int  # launches
    busy_ns: int  # union
    exposed_ns: int  # union, while no other kernel ran
    hidden_share: float | None  # of busy_ns: beside other kernels
    window_ns: int  # of all devices
    exposed_share: float | None  # of the window
    rows: tuple[CommunicationKernel, ...]  # the longest
    definition: str = "exposed: length of the union of communication kernels while no other kernel ran"


class CommunicationOfRank(Figure, frozen=True, kw_only=True):
    """How long one rank's devices communicated."""

    rank: int  # from 0
    communication_ns: int  # union of kernels


class DeviceStraggler(Figure, frozen=True, kw_only=True):
    """The rank that the others wait for: it spends least time in communication."""

    rank: int | None  # None: they are even, or nothing was recorded
    ranks: tuple[CommunicationOfRank, ...] = ()
    difference_ns: int | None = None  # between the most and the least
    why: str  # in words


def copy_figures(lines: Sequence[DeviceTimeline], steps: int) -> Copies:
    """All copies, and one row per direction and kind of host memory."""
    merged: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    busy = exposed = count = 0
    for line in lines:
        busy += intersect_intervals(line.copies, line.window).length_ns
        hidden_by_none = subtract_intervals(line.copies, line.kernels)
        exposed += intersect_intervals(hidden_by_none, line.window).length_ns
        count += line.events_of("copy").height
        for key, sums in _sum_copies(line).items():
            merged[key].update(sums)
    rows = tuple(
        CopyRow(
            direction=direction,
            memory=memory or None,
            count=sums["count"],
            per_step=divide_safely(sums["count"], steps),
            bytes=sums["bytes"] if sums["known_ns"] else None,
            total_ns=sums["total_ns"],
            gb_per_s=divide_safely(sums["bytes"], sums["known_ns"]),
            busy_ns=sums["busy_ns"],
            exposed_ns=sums["exposed_ns"],
        )
        for (direction, memory), sums in sorted(merged.items(), key=lambda item: -item[1]["total_ns"])
    )
    return Copies(count=count, busy_ns=busy, exposed_ns=exposed, rows=rows)


def _sum_copies(line: DeviceTimeline) -> dict[tuple[str, str], dict[str, int]]:
    """Sums of one device by direction and memory."""
    is_set = pl.col("kind") == "set"
    memory = pl.col("name").str.extract(r"(?i)\b(pageable|pinned)\b").str.to_lowercase().fill_null("")
    moved = line.events_of("copy", "set").with_columns(
        pl.when(is_set).then(pl.lit("set")).otherwise(pl.col("copy").fill_null("?")).alias("to"),
        memory.alias("memory"),
    )
    if moved.height == 0:
        return {}
    moved = moved.with_columns(pl.struct("to", "memory").rank("dense").cast(pl.Int64).alias("group"))
    borders, groups = event_borders(moved), moved["group"].to_numpy().astype(np.int64)
    busy = measure_by_group(*borders, groups, line.window)
    exposed = measure_by_group(*borders, groups, subtract_intervals(line.window, line.kernels))
    has_bytes = pl.col("bytes").is_not_null()
    sums = moved.group_by("group", "to", "memory").agg(
        pl.len().alias("count"),
        pl.col("bytes").sum().fill_null(0),
        pl.col("wall_ns").sum().alias("total_ns"),
        pl.col("wall_ns").filter(has_bytes).sum().alias("known_ns"),
    )
    return {
        (row.pop("to"), row.pop("memory")): {
            "busy_ns": busy.get(row["group"], 0),
            "exposed_ns": exposed.get(row.pop("group"), 0),
            **row,
        }
        for row in sums.to_dicts()
    }


def communication_figures(lines: Sequence[DeviceTimeline], kernels: pl.DataFrame) -> DeviceCommunication:
    """Union of communication kernels, and its part outside of the union of compute kernels."""
    busy = exposed = window = 0
    for line in lines:
        hidden_by_none = subtract_intervals(line.communication, line.compute)
        busy += intersect_intervals(line.communication, line.window).length_ns
        exposed += intersect_intervals(hidden_by_none, line.window).length_ns
        window += line.window.length_ns
    own = kernels.filter(pl.col("communication").fill_null(False))
    grouped = own.group_by("name").agg(pl.len().alias("count"), pl.col("wall_ns").sum().alias("total_ns"))
    longest = grouped.sort(["total_ns", "name"], descending=[True, False]).head(20)
    return DeviceCommunication(
        kernels=own.height,
        busy_ns=busy,
        exposed_ns=exposed,
        hidden_share=1 - exposed / busy if busy else None,
        window_ns=window,
        exposed_share=divide_safely(exposed, window),
        rows=tuple(CommunicationKernel(**row) for row in longest.to_dicts()),
    )


def find_device_straggler(lines: Sequence[DeviceTimeline]) -> DeviceStraggler | None:
    """The rank with the least time in communication; None for one rank."""
    waits: Counter[int] = Counter()
    windows: Counter[int] = Counter()
    for line in lines:
        waits[line.rank] += intersect_intervals(line.communication, line.window).length_ns
        windows[line.rank] += line.window.length_ns
    if len(waits) < 2:
        return None
    if not any(waits.values()):
        return DeviceStraggler(rank=None, why="no communication was recorded")
    least, most = min(sorted(waits), key=waits.__getitem__), max(sorted(waits), key=waits.__getitem__)
    difference = waits[most] - waits[least]
    uneven = difference > STRAGGLER_SPREAD * min(windows.values())
    return DeviceStraggler(
        rank=least if uneven else None,
        ranks=tuple(CommunicationOfRank(rank=rank, communication_ns=waits[rank]) for rank in sorted(waits)),
        difference_ns=difference,
        why=f"rank {least} spends {difference / 1e6:.1f} ms less in communication than rank {most}:"
        " the others wait for it there"
        if uneven
        else "time in communication is even between ranks",
    )

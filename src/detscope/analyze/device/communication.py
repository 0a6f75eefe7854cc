"""Communication between devices: how long, and how much of it no computation hid; who the others wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from detscope.analyze.device.intervals import intersect_intervals, subtract_intervals
from detscope.analyze.device.timeline import Timeline
from detscope.analyze.device.utilisation import share

STRAGGLER_SPREAD = 0.1  # of the window: below, ranks count as even


def communication_figures(lines: Sequence[Timeline]) -> dict[str, Any]:
    """Union of communication kernels, and its part outside of the union of compute kernels."""
    busy = exposed = window = 0
    for line in lines:
        talk = line.communication
        busy += intersect_intervals(talk, line.window).length_ns
        exposed += intersect_intervals(subtract_intervals(talk, line.compute), line.window).length_ns
        window += line.window.length_ns
    kernels = pl.concat([line.events_of("kernel") for line in lines]).filter(
        pl.col("communication").fill_null(False)
    )
    grouped = kernels.group_by("name").agg(pl.len().alias("count"), pl.col("wall_ns").sum().alias("total_ns"))
    return {
        "kernels": kernels.height,
        "busy_ns": busy,
        "exposed_ns": exposed,
        "hidden_share": 1 - exposed / busy if busy else None,
        "window_ns": window,
        "exposed_share": share(exposed, window),
        "rows": grouped.sort(["total_ns", "name"], descending=[True, False]).head(20).to_dicts(),
        "definition": "exposed: length of the union of communication kernels while no other kernel ran",
    }


def straggler(lines: Sequence[Timeline]) -> dict[str, Any] | None:
    """The rank that the others wait for: it spends least time in communication; None for one rank."""
    ranks = sorted({line.rank for line in lines})
    if len(ranks) < 2:
        return None
    waits, windows = {}, {}
    for rank in ranks:
        own = [line for line in lines if line.rank == rank]
        waits[rank] = sum(intersect_intervals(line.communication, line.window).length_ns for line in own)
        windows[rank] = sum(line.window.length_ns for line in own)
    if not any(waits.values()):
        return {"rank": None, "why": "no communication was recorded"}
    least, most = min(waits, key=waits.__getitem__), max(waits, key=waits.__getitem__)
    difference = waits[most] - waits[least]
    uneven = difference > STRAGGLER_SPREAD * min(windows.values())
    return {
        "rank": least if uneven else None,
        "communication_ns": {str(rank): waits[rank] for rank in ranks},
        "difference_ns": difference,
        "why": f"rank {least} spends {difference / 1e6:.1f} ms less in communication than rank {most}:"
        " the others wait for it there"
        if uneven
        else "time in communication is even between ranks",
    }

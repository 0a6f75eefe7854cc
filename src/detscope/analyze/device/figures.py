"""All figures of device use, from the tables of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from detscope.analyze.device.blame import blame_idle, blame_rows
from detscope.analyze.device.breakdown import step_breakdown
from detscope.analyze.device.communication import communication_figures, straggler
from detscope.analyze.device.copies import copy_rows, copy_totals
from detscope.analyze.device.cores import core_figures
from detscope.analyze.device.honesty import honesty_counts, remarks
from detscope.analyze.device.host import find_blocking_calls
from detscope.analyze.device.idle import CAUSES, IdlePieces, find_idle_pieces
from detscope.analyze.device.kernels import kernel_rows, launch_figures, tensor_share_by_name
from detscope.analyze.device.occupancy import occupancy, sm_efficiency
from detscope.analyze.device.parts import DEFINITION, PARTS, part_rows, step_rows
from detscope.analyze.device.timeline import Timeline, build_timelines
from detscope.analyze.device.utilisation import span_figures, use_of, utilisation_figures
from detscope.analyze.device.verdict import device_verdict

IDLE_DEFINITION = {
    "host": "the launch of the next event came late and nothing else explains it",
    "synchronisation": "a host call was waiting for the device when the gap began, and the next launch came"
    " after it returned",
    "data": "the host was in its loader, before the next launch",
    "short_gaps": "the next event was queued; at most 20 us: the device's own time between events",
    "queued": "the next event was queued; longer: the device waited for another stream, device or rank",
    "unknown": "the next event has no launch record",
}


def device_figures(
    device_events: pl.DataFrame,
    host_events: pl.DataFrame,
    kernel_metrics: pl.DataFrame,
    steps: pl.DataFrame | None = None,
    dropped: dict[str, int] | None = None,
) -> dict[str, Any] | None:
    """Everything about the device; None where a run has none of these tables."""
    lines = [line for line in build_timelines(device_events, host_events, steps) if line.events.height]
    if not lines:
        if kernel_metrics.height:
            return {
                "why": "no time line: counters of single kernels only",
                "cores": core_figures(kernel_metrics, None),
            }
        return None
    calls = {line.rank: find_blocking_calls(line.host, _events_of_rank(lines, line.rank)) for line in lines}
    pieces = [find_idle_pieces(line, calls[line.rank]) for line in lines]
    count = max(len(line.steps) for line in lines)
    uses = [use_of(line) for line in lines]
    use = utilisation_figures(uses, all(line.has_steps for line in lines))
    efficiency, achieved = sm_efficiency(lines), occupancy(lines)
    counts = honesty_counts(lines, device_events)
    breakdowns = [step_breakdown(line) for line in lines]
    figures: dict[str, Any] = {
        "steps": count or None,
        "devices": _device_rows(lines, uses, pieces, breakdowns),
        "utilisation": use,
        "sm_efficiency_estimated": efficiency["value"],
        "sm_efficiency": efficiency,
        "occupancy_estimated": achieved["value"],
        "occupancy": achieved,
        "idle": _idle(pieces, use["with_copies_window_ns"]),
        "blame": blame_rows(
            [blame_idle(line, calls[line.rank], own) for line, own in zip(lines, pieces, strict=True)],
            count,
            use["with_copies_window_ns"],
        ),
        "copies": {**copy_totals(lines), "rows": copy_rows(lines, count)},
        "communication": communication_figures(lines),
        "straggler": straggler(lines),
        "kernels": kernel_rows(lines, count),
        "launches": launch_figures(lines, count),
        "tensor_cores_by_name": tensor_share_by_name(lines),
        "cores": core_figures(kernel_metrics, use["kernels"]),
        "per_step": [row for line, own in zip(lines, pieces, strict=True) for row in step_rows(line, own)],
        "per": {part: part_rows(lines, pieces, part, count) for part in PARTS},
        "per_definition": DEFINITION,
        "breakdown": breakdowns[0],
        "honesty": {**counts, "remarks": remarks(counts, lines, dropped or {})},
    }
    figures["verdict"] = device_verdict(figures)
    return figures


def _events_of_rank(lines: Sequence[Timeline], rank: int) -> pl.DataFrame:
    own = [line.events for line in lines if line.rank == rank]
    return own[0] if len(own) == 1 else pl.concat(own)


def _idle(pieces: Sequence[IdlePieces], window_ns: int) -> dict[str, Any]:
    totals = dict.fromkeys(CAUSES, 0)
    for own in pieces:
        for cause, duration in own.sum_causes().items():
            totals[cause] += duration
    whole = sum(totals.values())
    return {
        **{cause: duration / window_ns if window_ns else None for cause, duration in totals.items()},
        **{f"{cause}_ns": duration for cause, duration in totals.items()},
        "busy": 1 - whole / window_ns if window_ns else None,
        "total": whole / window_ns if window_ns else None,
        "total_ns": whole,
        "window_ns": window_ns,
        "gaps": sum(len(own.starts) for own in pieces),
        "definition": IDLE_DEFINITION,
    }


def _device_rows(
    lines: Sequence[Timeline],
    uses: Sequence[dict[str, Any]],
    pieces: Sequence[IdlePieces],
    breakdowns: Sequence[dict[str, Any] | None],
) -> list[dict[str, Any]]:
    rows = []
    for line, use, own, roles in zip(lines, uses, pieces, breakdowns, strict=True):
        figures = utilisation_figures([use], line.has_steps)
        rows.append(
            {
                "rank": line.rank,
                "device": line.device,
                "streams": line.events["stream"].n_unique(),
                "steps": len(line.steps),
                "events": line.events.height,
                **{key: figures[key] for key in ("kernels", "with_copies", "copies", "compute")},
                **use,
                "idle_ns": own.sum_causes(),
                "span": span_figures(line),
                "breakdown_us": (roles or {}).get("average_us"),
                "sm_efficiency_estimated": sm_efficiency([line])["value"],
                "occupancy_estimated": occupancy([line])["value"],
            }
        )
    return rows

"""From rows of collectives to what each rank spent in them: busy, exposed by phase, waiting for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from detscope.analyze.device.intervals import Intervals, intersect_intervals, single_interval, subtract_intervals, unite_sets, merge_intervals
from detscope.analyze.ranks.device import WaitStretch, StepCollectives

Meetings = Mapping[tuple[object, ...], int]  # when the last rank came
_OF_WRAPPER = ("gradients", "buffers")


def read_collectives(communication: pl.DataFrame, steps: Sequence[int]) -> dict[tuple[int, int], StepCollectives]:
    """Collectives by rank and step."""
    chosen = communication.filter(pl.col("step").is_in(list(steps)))
    found = {}
    for (rank, step), frame in chosen.group_by("rank", "step"):
        found[int(str(rank)), int(str(step))] = account_collectives(frame, int(str(step)))
    return found


def account_collectives(frame: pl.DataFrame, step: int = 0) -> StepCollectives:
    """The collectives of one rank in one step."""
    own = frame.filter(~pl.col("kind").is_in(_OF_WRAPPER))
    exposed: dict[str, Intervals] = {}
    blocked = []
    for phase, intervals, stretches in (
        ("forward", *_buffers(frame.filter(pl.col("kind") == "buffers"), step)),
        ("backward", *_gradients(frame.filter(pl.col("kind") == "gradients"), step)),
        *((str(name), *_called(rows)) for (name,), rows in own.group_by("phase", maintain_order=True)),
    ):
        for known in exposed.values():  # of collectives inside of another, each moment counts once
            intervals = subtract_intervals(intervals, known)
        exposed[phase] = unite_sets(exposed[phase], intervals) if phase in exposed else intervals
        blocked += stretches
    lengths = {phase: intervals.length_ns for phase, intervals in exposed.items()}
    return StepCollectives(merge_intervals(*_borders(frame)).length_ns, lengths, tuple(blocked))


def _borders(frame: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    starts = frame["start_ns"].to_numpy().astype(np.int64)
    return starts, starts + frame["wall_ns"].to_numpy().astype(np.int64)


def _buffers(frame: pl.DataFrame, step: int) -> tuple[Intervals, list[WaitStretch]]:
    """Nothing runs beside an exchange of buffers."""
    starts, ends = _borders(frame)
    if not len(starts):
        return merge_intervals(starts, ends), []
    whole = WaitStretch((step, "buffers"), int(starts.min()), int(starts.min()), int(ends.max()))
    return merge_intervals(starts, ends), [whole]


def _gradients(frame: pl.DataFrame, step: int) -> tuple[Intervals, list[WaitStretch]]:
    """Of every pass of buckets, what is left when the last one was handed over."""
    starts, ends = _borders(frame.sort("start_ns"))
    buckets = frame.sort("start_ns")["bucket"].to_numpy()
    firsts = np.flatnonzero(np.diff(buckets, prepend=np.int64(-1 << 62)) <= 0).tolist()
    exposed, blocked = merge_intervals(starts[:0], ends[:0]), []
    for number, (first, end) in enumerate(zip([0, *firsts], [*firsts, len(starts)], strict=True)):
        if first == end:
            continue
        last = (int(starts[first:end].max()), int(ends[first:end].max()))
        exposed = unite_sets(exposed, intersect_intervals(merge_intervals(starts[first:end], ends[first:end]), single_interval(*last)))
        blocked.append(WaitStretch((step, "gradients", number), last[0], *last))
    return exposed, blocked


def _called(frame: pl.DataFrame) -> tuple[Intervals, list[WaitStretch]]:
    """What a program called itself and waited for."""
    arrived = frame["start_ns"].to_numpy().astype(np.int64)
    starts = arrived + frame["blocked_after_ns"].to_numpy().astype(np.int64)
    ends = starts + frame["blocked_ns"].to_numpy().astype(np.int64)
    meetings = frame.select("group", _meeting_kind(), "bucket").rows()
    stretches = zip(meetings, arrived.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return merge_intervals(starts, ends), [WaitStretch(*stretch) for stretch in stretches if stretch[0][0] is not None]


def _meeting_kind() -> pl.Expr:
    """Who sends and who receives come to the same meeting."""
    return pl.col("kind").replace({"send": "send and recv", "recv": "send and recv"})


def find_last_arrivals(talks: Mapping[tuple[int, int], StepCollectives]) -> dict[tuple[object, ...], int]:
    """When the last rank came to each collective."""
    found: dict[tuple[object, ...], int] = {}
    for talk in talks.values():
        for one_ in talk.blocked:
            found[one_.meeting] = max(one_.arrived_ns, found.get(one_.meeting, one_.arrived_ns))
    return found


def sum_waits(talk: StepCollectives, latest: Meetings) -> int:
    """What of a rank's exposed communication passed before the last rank came to it."""
    return sum(max(0, min(latest[one_.meeting], one_.end_ns) - one_.start_ns) for one_ in talk.blocked)

"""From rows of collectives to what each rank spent in them: busy, exposed by phase, waiting for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from detscope.analyze.device.intervals import (
    Intervals,
    intersect_intervals,
    merge_intervals,
    single_interval,
    subtract_intervals,
    unite_sets,
)
from detscope.analyze.device.timeline import build_timelines, event_borders
from detscope.runs.reader import Run

Meeting = tuple[str | int | None, ...]  # equal for the ranks that met in it
_OF_WRAPPER = ("gradients", "buffers")


@dataclass(frozen=True)
class WaitStretch:
    """A stretch in which a rank could do nothing but wait for a collective, in ns of the common clock."""

    meeting: Meeting
    arrived_ns: int  # when this rank had come to it
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class StepCollectives:
    """Collectives of one rank in one step, in ns."""

    busy_ns: int
    exposed: dict[str, int]  # by the phase in which the rank waited
    blocked: tuple[WaitStretch, ...]  # where nothing hid it; empty: not known

    @property
    def exposed_ns(self) -> int:
        """All that was not hidden."""
        return sum(self.exposed.values())


@dataclass(frozen=True)
class CollectiveTimes:
    """Collectives of several steps together, in ns."""

    busy_ns: int
    exposed_ns: int
    waited_ns: int | None  # None: not known
    n: int  # steps

    @property
    def hidden_share(self) -> float | None:
        """What of them was hidden."""
        return 1 - self.exposed_ns / self.busy_ns if self.busy_ns else None

    def per_step_ms(self, length_ns: int | None) -> float | None:
        """A length per step; None where there are no collectives."""
        return length_ns / self.n / 1e6 if self.n and length_ns is not None else None


CollectivesByStep = Mapping[tuple[int, int], StepCollectives]  # by rank and step


def read_collectives(communication: pl.DataFrame, steps: Sequence[int]) -> CollectivesByStep:
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
        ("forward", *_read_buffers(frame.filter(pl.col("kind") == "buffers"), step)),
        ("backward", *_read_gradients(frame.filter(pl.col("kind") == "gradients"), step)),
        *((str(name), *_read_calls(rows)) for (name,), rows in own.group_by("phase", maintain_order=True)),
    ):
        for known in exposed.values():  # of collectives inside of another, each moment counts once
            intervals = subtract_intervals(intervals, known)
        exposed[phase] = unite_sets(exposed[phase], intervals) if phase in exposed else intervals
        blocked += stretches
    lengths = {phase: intervals.length_ns for phase, intervals in exposed.items()}
    return StepCollectives(merge_intervals(*event_borders(frame)).length_ns, lengths, tuple(blocked))


def _read_buffers(frame: pl.DataFrame, step: int) -> tuple[Intervals, list[WaitStretch]]:
    """Nothing runs beside an exchange of buffers."""
    starts, ends = event_borders(frame)
    if not len(starts):
        return merge_intervals(starts, ends), []
    whole = WaitStretch((step, "buffers"), int(starts.min()), int(starts.min()), int(ends.max()))
    return merge_intervals(starts, ends), [whole]


def _read_gradients(frame: pl.DataFrame, step: int) -> tuple[Intervals, list[WaitStretch]]:
    """Of every pass of buckets, what is left when the last one was handed over."""
    starts, ends = event_borders(frame.sort("start_ns"))
    buckets = frame.sort("start_ns")["bucket"].to_numpy()
    firsts = np.flatnonzero(np.diff(buckets, prepend=np.int64(-1 << 62)) <= 0).tolist()
    exposed, blocked = merge_intervals(starts[:0], ends[:0]), []
    for number, (first, end) in enumerate(zip([0, *firsts], [*firsts, len(starts)], strict=True)):
        if first == end:
            continue
        last = (int(starts[first:end].max()), int(ends[first:end].max()))
        busy = merge_intervals(starts[first:end], ends[first:end])
        exposed = unite_sets(exposed, intersect_intervals(busy, single_interval(*last)))
        blocked.append(WaitStretch((step, "gradients", number), last[0], *last))
    return exposed, blocked


def _read_calls(frame: pl.DataFrame) -> tuple[Intervals, list[WaitStretch]]:
    """What a program called itself and waited for."""
    arrived = frame["start_ns"].to_numpy().astype(np.int64)
    starts = arrived + frame["blocked_after_ns"].to_numpy().astype(np.int64)
    ends = starts + frame["blocked_ns"].to_numpy().astype(np.int64)
    # who sends and who receives come to the same meeting
    kind = pl.col("kind").replace({"send": "send and recv", "recv": "send and recv"})
    meetings = frame.select("group", kind, "bucket").rows()
    stretches = zip(meetings, arrived.tolist(), starts.tolist(), ends.tolist(), strict=True)
    known = [WaitStretch(*stretch) for stretch in stretches if stretch[0][0] is not None]
    return merge_intervals(starts, ends), known


def find_last_arrivals(collectives: CollectivesByStep) -> dict[Meeting, int]:
    """When the last rank came to each collective."""
    found: dict[Meeting, int] = {}
    for own in collectives.values():
        for wait in own.blocked:
            found[wait.meeting] = max(wait.arrived_ns, found.get(wait.meeting, wait.arrived_ns))
    return found


def sum_collectives(spoken: Sequence[StepCollectives], latest: Mapping[Meeting, int]) -> CollectiveTimes:
    """Collectives of several steps together; `latest` is when the last rank came to each of them."""
    return CollectiveTimes(
        sum(own.busy_ns for own in spoken),
        sum(own.exposed_ns for own in spoken),
        sum(sum_waits(own, latest) for own in spoken) if latest else None,
        len(spoken),
    )


def sum_waits(collectives: StepCollectives, latest: Mapping[Meeting, int]) -> int:
    """What of a rank's exposed communication passed before the last rank came to it."""
    waits = (min(latest[wait.meeting], wait.end_ns) - wait.start_ns for wait in collectives.blocked)
    return sum(max(0, wait_ns) for wait_ns in waits)


def read_device_collectives(run: Run, steps: Sequence[int]) -> dict[tuple[int, int], StepCollectives]:
    """By rank and step; of a rank with several devices, the one that talks longest."""
    wanted = set(steps)
    found: dict[tuple[int, int], StepCollectives] = {}
    for line in build_timelines(run.table("device_events"), run.table("host_events")):
        exposed = subtract_intervals(line.communication, line.compute)
        borders = zip(line.steps.numbers, line.steps.starts, line.steps.ends, strict=True)
        for number, start_ns, end_ns in borders:
            step, window = int(number), single_interval(int(start_ns), int(end_ns))
            busy_ns = intersect_intervals(line.communication, window).length_ns
            known = found.get((line.rank, step))
            if step in wanted and busy_ns and (known is None or known.busy_ns < busy_ns):
                part = {"backward": intersect_intervals(exposed, window).length_ns}
                found[line.rank, step] = StepCollectives(busy_ns, part, ())
    return found

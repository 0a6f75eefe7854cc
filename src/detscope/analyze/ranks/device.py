"""Collectives of ranks whose devices were recorded: kernels of communication, hidden behind other kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detscope.analyze.device.intervals import intersect_intervals, single_interval, subtract_intervals
from detscope.analyze.device.timeline import build_timelines
from detscope.runs.reader import Run


@dataclass(frozen=True)
class WaitStretch:
    """A stretch in which a rank could do nothing but wait for a collective, in ns of the common clock."""

    meeting: tuple[object, ...]  # equal for the ranks that met in it
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

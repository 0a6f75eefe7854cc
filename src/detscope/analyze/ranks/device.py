"""Collectives of ranks whose devices were recorded: kernels of communication, hidden behind other kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detscope.analyze.device.intervals import intersect, one, subtract
from detscope.analyze.device.timeline import timelines
from detscope.runs.reader import Run


@dataclass(frozen=True)
class Blocked:
    """A stretch in which a rank could do nothing but wait for a collective, in ns of the common clock."""

    meeting: tuple[object, ...]  # equal for the ranks that met in it
    arrived_ns: int  # when this rank had come to it
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Talk:
    """Collectives of one rank in one step, in ns."""

    busy_ns: int
    exposed: dict[str, int]  # by the phase in which the rank waited
    blocked: tuple[Blocked, ...]  # where nothing hid it; empty: not known

    @property
    def exposed_ns(self) -> int:
        """All that was not hidden."""
        return sum(self.exposed.values())


def device_talks(run: Run, steps: Sequence[int]) -> dict[tuple[int, int], Talk]:
    """By rank and step; of a rank with several devices, the one that talks longest."""
    wanted = set(steps)
    found: dict[tuple[int, int], Talk] = {}
    for line in timelines(run.table("device_events"), run.table("host_events")):
        exposed = subtract(line.communication, line.compute)
        borders = zip(line.steps.numbers, line.steps.starts, line.steps.ends, strict=True)
        for number, start_ns, end_ns in borders:
            step, window = int(number), one(int(start_ns), int(end_ns))
            busy_ns = intersect(line.communication, window).length_ns
            known = found.get((line.rank, step))
            if step in wanted and busy_ns and (known is None or known.busy_ns < busy_ns):
                part = {"backward": intersect(exposed, window).length_ns}
                found[line.rank, step] = Talk(busy_ns, part, ())
    return found

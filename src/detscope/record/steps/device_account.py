"""A step on the device's clock, from its marks: how long, of that how long idle at most. Pure.

Between two marks of one stream the device did what the host had queued between them. It can only have stood
still until the host had queued all of it: so much of the stretch is idle at most, the rest is surely work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from detscope.record.steps.events import NO_SEQUENCE
from detscope.record.steps.nodes import PHASES, NodeTable
from detscope.record.steps.replay import BACKWARD, FORWARD, StepAccount, Way, replay_events

Row = tuple[Any, ...]


@dataclass(frozen=True)
class DeviceMoment:
    """An event that was marked: its code (None: a border of the step), the host's time and the device's."""

    code: int | None
    host_ns: int
    device_ns: int


@dataclass(frozen=True)
class DeviceAccount:
    """One stream in one step: the same account on two clocks, of which the second only runs while idle."""

    wall: StepAccount
    idle: StepAccount
    ahead_ns: int  # the device's end less the host's


def account_device(
    moments: Sequence[DeviceMoment],
    nodes: NodeTable,
    ways: Mapping[int, Way] | None = None,
    keep_slices: bool = False,
) -> DeviceAccount:
    """Replay the marked events of one stream, which come in its order; the first and last are its borders."""
    device, idle = [moments[0].device_ns], [0]
    for last, moment in pairwise(moments):
        device.append(max(moment.device_ns, device[-1]))
        stretch = device[-1] - device[-2]
        idle.append(idle[-1] + min(stretch, max(0, moment.host_ns - max(last.host_ns, device[-2]))))
    events: list[int] = []
    places = []
    for place, moment in enumerate(moments):
        if moment.code is not None:
            events += (moment.code, 0, NO_SEQUENCE)
            places.append(place)

    def replay(times: Sequence[int], slices: bool = False) -> StepAccount:
        own = [times[place] for place in places]
        return replay_events(events, nodes, times[0], times[-1], slices, own, ways)

    ahead_ns = max(0, device[-1] - moments[-1].host_ns)
    return DeviceAccount(replay(device, keep_slices), replay(idle), ahead_ns)


def make_device_step_rows(step: int, account: DeviceAccount, stream: int = 0) -> list[Row]:
    """Rows of `device_steps`: the step and its phases; of a stream beside it only what ran there."""
    wall, idle = account.wall, account.idle
    rows: list[Row] = []
    if stream == 0:
        whole = (wall.start_ns, wall.wall_ns, idle.wall_ns, account.ahead_ns)
        rows.append((step, "step", stream, *whole))
    for phase in PHASES:
        if stream == 0 or (phase != "other" and wall.phases.get(phase)):
            spent = (wall.phases.get(phase, 0), idle.phases.get(phase, 0))
            rows.append((step, phase, stream, wall.start_ns, *spent, None))
    return rows


def make_device_span_rows(
    step: int, nodes: NodeTable, account: DeviceAccount, marked: Collection[int], ways: Mapping[int, Way]
) -> list[Row]:
    """Rows of `device_spans`; of modules those that were marked, others were only passed."""
    wall, idle = account.wall, account.idle
    rows: list[Row] = []
    for key in sorted(wall.total_ns):
        number, direction = key
        if number not in marked:
            continue
        node, callers = nodes[number], ways.get(number, ((number,), None))[0][:-1]
        above = nodes[callers[-1]].path if callers else None
        spent = (wall.calls.get(key, 0), wall.total_ns[key], idle.total_ns.get(key, 0))
        rows.append((step, node.kind, node.path, above, direction, *spent))
    for (stage, direction), duration in sorted(wall.stages.items()):
        spent = (1, duration, idle.stages.get((stage, direction), 0))
        rows.append((step, "stage", stage, None, direction, *spent))
    for phase in (FORWARD, BACKWARD):
        spent = (1, wall.outside.get(phase, 0), idle.outside.get(phase, 0))
        rows.append((step, "outside", phase, None, phase, *spent))
    return rows

"""The step as TensorBoard's profiler told it: each role only gets the time that no earlier role took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detscope.analyze.device.intervals import Intervals, intersect_intervals, measure_overlap, subtract_intervals, merge_intervals
from detscope.analyze.device.timeline import Timeline, merge_events

ROLES = ("kernel", "memcpy", "memset", "communication", "runtime", "loader", "cpu", "other")


def role_times(line: Timeline) -> dict[str, Intervals]:
    """What each role did, on the device and on its host, in order of precedence."""

    def of(*kinds: str) -> Intervals:
        return merge_events(line.host_times(*kinds))

    return {
        "kernel": line.compute,
        "memcpy": line.copies,
        "memset": line.sets,
        "communication": line.communication,
        "runtime": of("runtime"),
        "loader": of("loader"),
        "cpu": of("operator", "annotation"),
    }


def exclusive(roles: Mapping[str, Intervals], window: Intervals) -> dict[str, Intervals]:
    """Each role's part of the window that no earlier role took; `other` is the rest."""
    left, result = window, {}
    for role, times in roles.items():
        result[role] = intersect_intervals(times, left)
        left = subtract_intervals(left, times)
    return {**result, "other": left}


def step_breakdown(line: Timeline) -> dict[str, Any] | None:
    """The average step in us by role, and each step; None where there are no steps."""
    steps = line.steps
    if len(steps) == 0:
        return None
    window = merge_intervals(steps.starts, steps.ends)
    parts = exclusive(role_times(line), window)
    per_step = {role: measure_overlap(times, steps.starts, steps.ends) for role, times in parts.items()}
    lengths = steps.ends - steps.starts
    return {
        "steps": len(steps),
        "average_us": {
            "step": float(lengths.mean()) / 1e3,
            **{role: float(times.mean()) / 1e3 for role, times in per_step.items()},
        },
        "share": {role: float(times.sum() / lengths.sum()) for role, times in per_step.items()},
        "per_step_us": [
            {
                "step": int(steps.numbers[index]),
                "step_us": int(lengths[index]) / 1e3,
                **{f"{role}_us": int(times[index]) / 1e3 for role, times in per_step.items()},
            }
            for index in range(len(steps))
        ],
        "definition": "time of the step by role: kernel, memcpy, memset, communication, runtime, loader,"
        " cpu, other; each role only gets time that no earlier one took",
    }

"""What the figures leave out or cannot know, as counts; nothing is dropped in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from detscope.analyze.device.intervals import measure_overlap
from detscope.analyze.device.timeline import DeviceTimeline, event_borders
from detscope.analyze.figure import Figure


class DeviceHonesty(Figure, frozen=True, kw_only=True):
    """Counts over all devices; each but the first is 0 in a recording without a flaw."""

    events: int  # of all devices
    unlinked: int  # without a launch record
    without_operator: int  # that no operator launched
    outside_window: int  # not counted
    clipped_by_window: int  # counted in part
    began_before_launch: int  # clocks do not agree
    overlapping_on_a_stream: int  # with others of their stream
    without_duration: int  # counted as 0
    missing_steps: int  # between the first and the last
    overlapping_steps: int  # that begin before the previous ended
    remarks: tuple[str, ...]  # those that matter, and what the reader of the file dropped, as sentences


_WORDS = {
    "unlinked": "{n} of {of} device events have no launch record: the cause of idle time before them is"
    " unknown",
    "outside_window": "{n} device events lie outside of the measured steps and are not counted",
    "clipped_by_window": "{n} device events cross the border of the measured steps and count in part",
    "began_before_launch": "{n} device events began before their launch call: the clocks of host and"
    " device do not agree",
    "overlapping_on_a_stream": "{n} device events overlap with others of their own stream",
    "without_duration": "{n} device events have no duration and count as 0",
    "missing_steps": "{n} steps are missing between the first and the last",
    "overlapping_steps": "{n} steps begin before the previous one ended",
}
_COUNTED_HERE = ("without a launch record", "outside of steps")


def count_flaws(
    lines: Sequence[DeviceTimeline], all_events: pl.DataFrame, dropped: Mapping[str, int]
) -> DeviceHonesty:
    """What is wrong with a recording, and what its reader dropped, clipped or could not link."""
    counts = dict.fromkeys(DeviceHonesty.__struct_fields__[:-1], 0)
    counts["events"] = all_events.height
    counts["without_duration"] = int(all_events["wall_ns"].is_null().sum())
    for line in lines:
        events = line.events
        starts, ends = event_borders(events)
        inside = measure_overlap(line.window, starts, ends)
        real = ends > starts
        counts["unlinked"] += int(events["launch_ns"].null_count())
        counts["without_operator"] += int(events["operator"].null_count())
        counts["outside_window"] += int((real & (inside == 0)).sum())
        counts["clipped_by_window"] += int((real & (inside > 0) & (inside < ends - starts)).sum())
        counts["began_before_launch"] += events.filter(pl.col("start_ns") < pl.col("launch_ns")).height
        counts["overlapping_on_a_stream"] += _count_overlapping(events)
    for line in {line.rank: line for line in lines}.values():
        steps = line.steps
        if len(steps) > 1:
            counts["missing_steps"] += int(np.maximum(0, np.diff(np.sort(steps.numbers)) - 1).sum())
            counts["overlapping_steps"] += int((steps.host_starts[1:] < steps.host_ends[:-1]).sum())
    said = [text.format(n=counts[key], of=counts["events"]) for key, text in _WORDS.items() if counts[key]]
    said += [f"{n} {what}" for what, n in dropped.items() if n and not what.endswith(_COUNTED_HERE)]
    if apart := _say_ranks_apart(lines):
        said.append(apart)
    return DeviceHonesty(**counts, remarks=tuple(said))


def explain_absence(info: Mapping[str, Any]) -> str:
    """Why files recorded elsewhere have no time line of a device: there is none, or it is not understood."""
    unknown: Counter[str] = Counter()
    for source in info.get("sources") or []:
        unknown.update(source.get("not_understood") or {})
    told = ", ".join(f"{n:,} events of category {category}" for category, n in unknown.most_common())
    return f"not understood: {told}" if told else "no device events were recorded"


def _count_overlapping(events: pl.DataFrame) -> int:
    """Events of one stream cannot overlap: where they do, the clock or the file is wrong."""
    ordered = events.select("stream", "start_ns", "wall_ns").sort("stream", "start_ns")
    reach = (pl.col("start_ns") + pl.col("wall_ns")).cum_max().shift(1).over("stream")
    return ordered.filter(pl.col("start_ns") < reach).height


def _say_ranks_apart(lines: Sequence[DeviceTimeline]) -> str | None:
    """Ranks of one job run at the same time; where they do not, their clocks differ."""
    spans: dict[int, tuple[int, int]] = {}
    for line in lines:
        if len(line.window):
            start, end = int(line.window.starts[0]), int(line.window.ends[-1])
            first, last = spans.get(line.rank, (start, end))
            spans[line.rank] = (min(first, start), max(last, end))
    if len(spans) < 2:
        return None
    latest_start, first_end = max(s for s, _ in spans.values()), min(e for _, e in spans.values())
    if latest_start <= first_end:
        return None
    return "the ranks' recordings do not overlap in time: their clocks differ or they are of different runs"

"""A device's own time, step by step: by the marks in its queue, or by its kernels and copies.

Both have one shape. Phases of a step add up to it; `data` is the time in which the device stood idle while
the host waited for a batch. Of kernels, those of the stream that computes most come first: what other
streams did meanwhile lies beside the step, and only what nothing hid is part of it. Idle time belongs to
whose work ended it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from detscope.analyze.device.idle import CauseTimes, IdlePieces
from detscope.analyze.device.intervals import Times, measure_overlap, merge_intervals
from detscope.analyze.device.timeline import DeviceTimeline, event_borders
from detscope.analyze.step.steps import PHASES
from detscope.runs.reader import Run
from detscope.runs.writer import polars_schema

Source = Literal["marks", "kernels"]
_PLACE = ("phase", "stage", "module", "direction")


@dataclass(frozen=True)
class DeviceTimes:
    """What a device's clock told; `idle_ns` is at most so much where marks say it."""

    source: Source
    steps: pl.DataFrame  # as the table `device_steps`, of the stream that computes
    spans: pl.DataFrame  # as the table `device_spans`
    beside: pl.DataFrame  # as the table `device_steps`, of other streams
    causes: CauseTimes | None = None  # of idle time, where kernels tell it

    def steps_among(self, wanted: Iterable[int]) -> list[int]:
        """Those of the steps whose phases are told; of kernels all, where a window of its own has them."""
        known = set(self.steps.filter(pl.col("phase") != "step")["step"].to_list())
        found = known.intersection(wanted)
        return sorted(found or (known if self.source == "kernels" else ()))

    def list_ms(self, phase: str, steps: Sequence[int], column: str = "wall_ns") -> list[float]:
        """A phase, or the whole "step", in each of these steps."""
        chosen = self.steps.filter((pl.col("phase") == phase) & pl.col("step").is_in(list(steps))).sort(
            "step"
        )
        return [ns / 1e6 for ns in chosen[column].to_list() if ns is not None]


def read_marks(run: Run) -> DeviceTimes | None:
    """What the recorder's marks in the device's queue told; None where there are none."""
    rows = run.table("device_steps")
    if not rows.height:
        return None
    computes = pl.col("stream").fill_null(0) == 0
    return DeviceTimes("marks", rows.filter(computes), run.table("device_spans"), rows.filter(~computes))


def measure_kernels(
    line: DeviceTimeline, pieces: IdlePieces, nodes: Mapping[str, str], callers: Mapping[str, str | None]
) -> DeviceTimes | None:
    """The same by kernels and copies; None where there are no steps, or no event knows its phase.

    `nodes` has the kind of every path, `callers` who calls what does not lie below its caller by name.
    """
    events = line.events.filter(pl.col("wall_ns") > 0)  # what `pieces.ender` counts
    if not line.has_steps or events["phase"].null_count() == events.height:
        return None
    computes = _find_main_stream(events)
    parts = pl.concat([_busy_parts(line, events, computes), _idle_parts(pieces, events)])
    steps = _sum_phases(line, parts, pieces)
    numbered = parts.with_columns(pl.Series("step", line.steps.numbers[parts["step"].to_numpy()]))
    spans = _sum_spans(numbered.filter(pl.col("phase").is_in(["forward", "backward"])), nodes, callers)
    return DeviceTimes("kernels", steps, spans, _sum_beside(line, events, computes), pieces.sum_causes())


def _find_main_stream(events: pl.DataFrame) -> pl.Series:
    """Which events are of the stream that computes most; communication is not what a step is made of."""
    own = pl.col("wall_ns") * (~pl.col("communication").fill_null(False)).cast(pl.Int64)
    kernels = events.filter(pl.col("kind") == "kernel")
    summed = (kernels if kernels.height else events).group_by("stream").agg(own.sum())
    main = summed.sort(["wall_ns", "stream"], descending=[True, False])["stream"][0]
    return events.select(pl.col("stream").eq_missing(main)).to_series()


def _step_of(line: DeviceTimeline, times: Times) -> Times:
    """Index of the step whose window each time lies in; -1 for none."""
    index = np.searchsorted(line.steps.starts, times, side="right") - 1
    return np.where((index >= 0) & (times < line.steps.ends[np.maximum(index, 0)]), index, -1)


def _busy_parts(line: DeviceTimeline, events: pl.DataFrame, computes: pl.Series) -> pl.DataFrame:
    """Every event with the time that is its alone, cut at the borders of steps: no moment counts twice."""
    starts, ends = event_borders(events)
    main, begins = computes.to_numpy(), starts.copy()
    for own in (main, ~main):  # of two that overlap, the earlier has the time
        if own.any():
            reach = np.maximum.accumulate(ends[own])
            begins[own] = np.maximum(starts[own], np.concatenate([starts[own][:1], reach[:-1]]))
    first = np.maximum(0, np.searchsorted(line.steps.starts, begins, side="right") - 1)
    counts = np.where(begins < ends, np.searchsorted(line.steps.starts, ends, side="left") - first, 0)
    row = np.repeat(np.arange(len(counts)), np.maximum(0, counts))
    step = first[row] + np.arange(len(row)) - np.searchsorted(row, row, side="left")
    begin = np.maximum(begins[row], line.steps.starts[step])
    end = np.maximum(begin, np.minimum(ends[row], line.steps.ends[step]))
    hidden = measure_overlap(merge_intervals(starts[main], ends[main]), begin, end)
    busy = end - begin - np.where(main[row], 0, hidden)
    phase = pl.col("phase").fill_null("other")
    # the loader's own copies and kernels are work: the phase `data` is idle time and nothing else
    moved = pl.when(pl.col("kind") == "kernel").then(pl.lit("other")).otherwise(pl.lit("transfer"))
    placed = events.select("kind", *_PLACE).with_columns(
        phase=pl.when(phase == "data").then(moved).otherwise(phase)
    )
    return placed.select(
        pl.Series("step", step),
        pl.col(_PLACE).gather(pl.Series(row).cast(pl.UInt32)),
        pl.Series("busy_ns", busy),
        pl.lit(0).cast(pl.Int64).alias("idle_ns"),
    )


def _idle_parts(pieces: IdlePieces, events: pl.DataFrame) -> pl.DataFrame:
    """Every stretch of idle time with the place of the work that ended it; without the waiting for data."""
    ended = pieces.ender >= 0
    row = pl.Series(np.where(ended, pieces.ender, 0)).cast(pl.UInt32)
    known = pl.Series(ended)
    places = events.select(pl.col(_PLACE).gather(row)).with_columns(
        pl.when(known).then(pl.col(name)).alias(name) for name in _PLACE
    )
    phase = pl.col("phase").fill_null("other").replace("data", "other")
    return places.select(
        pl.Series("step", pieces.step),
        phase,
        *_PLACE[1:],
        pl.lit(0).cast(pl.Int64).alias("busy_ns"),
        pl.Series("idle_ns", pieces.lengths - pieces.data_ns),
    ).filter(pl.col("step") >= 0)


def _sum_phases(line: DeviceTimeline, parts: pl.DataFrame, pieces: IdlePieces) -> pl.DataFrame:
    """Every step and each of its phases; what no event and no gap explains is `other`."""
    windows = line.steps.ends - line.steps.starts
    waits = np.zeros(len(windows), np.int64)
    np.add.at(waits, pieces.step[pieces.step >= 0], pieces.data_ns[pieces.step >= 0])
    grouped = parts.group_by("step", "phase").agg(pl.col("busy_ns").sum(), pl.col("idle_ns").sum())
    busy, idle = ({phase: np.zeros(len(windows), np.int64) for phase in PHASES} for _ in range(2))
    for index, phase, busy_ns, idle_ns in grouped.iter_rows():
        place = phase if phase in busy else "other"
        busy[place][index] += busy_ns
        idle[place][index] += idle_ns
    idle["data"] = waits
    busy["other"] += np.maximum(0, windows - sum(busy.values()) - sum(idle.values()))
    walls = {phase: busy[phase] + idle[phase] for phase in PHASES} | {"step": windows}
    idle["step"] = np.asarray(sum(idle.values()))
    ahead = line.steps.ends - line.steps.host_ends
    frames = [
        pl.DataFrame(
            {
                "step": line.steps.numbers,
                "start_ns": line.steps.starts,
                "wall_ns": walls[phase],
                "idle_ns": idle[phase],
                "ahead_ns": ahead,
            }
        ).with_columns(phase=pl.lit(phase), stream=pl.lit(0).cast(pl.Int64))
        for phase in ("step", *PHASES)
    ]
    return pl.concat(frames).select(list(polars_schema("device_steps")))


def _sum_spans(
    parts: pl.DataFrame, nodes: Mapping[str, str], callers: Mapping[str, str | None]
) -> pl.DataFrame:
    """Stages without their parts, modules with what they call, by step and direction."""
    again = (pl.col("phase") == "backward") & (pl.col("direction") == "recompute")
    way = pl.when(again).then(pl.lit("recompute")).otherwise(pl.col("phase")).alias("direction")
    sums = (pl.col("busy_ns").sum(), pl.col("idle_ns").sum())
    stages = parts.group_by("step", pl.col("stage").fill_null("").alias("path"), way).agg(*sums)
    own = parts.filter(pl.col("module").is_not_null()).group_by("step", pl.col("module").alias("path"), way)
    modules = own.agg(*sums)
    known = {*nodes, *modules["path"].to_list()}
    above = pl.DataFrame(
        [(path, one) for path in modules["path"].unique() for one in list_callers(path, known, callers)],
        schema={"path": pl.String, "above": pl.String},
        orient="row",
    )
    totals = modules.join(above, on="path").group_by("step", pl.col("above").alias("path"), "direction")
    found = totals.agg(*sums)
    paths = pl.DataFrame(
        [
            (path, nodes.get(path, "module"), find_caller(path, known, callers))
            for path in found["path"].unique()
        ],
        schema=dict.fromkeys(("path", "kind", "parent"), pl.String),
        orient="row",
    )
    both = pl.concat(
        [stages.with_columns(kind=pl.lit("stage")), found.join(paths, on="path")], how="diagonal_relaxed"
    )
    wall = (pl.col("busy_ns") + pl.col("idle_ns")).alias("wall_ns")
    named = both.with_columns(wall, calls=pl.lit(1).cast(pl.Int64))
    return named.select(list(polars_schema("device_spans"))).sort("step", "kind", "path", "direction")


def find_caller(path: str, known: Iterable[str], callers: Mapping[str, str | None]) -> str | None:
    """Who calls a node: as it was seen, else what its name lies below; None of the outermost."""
    if path in callers:
        return callers[path]
    names = known if isinstance(known, set | dict) else set(known)
    for at in range(len(path) - 1, 0, -1):
        if path[at] in ".:" and path[:at] in names:
            return path[:at]
    return "" if path and "" in names else None


def list_callers(path: str, known: Iterable[str], callers: Mapping[str, str | None]) -> list[str]:
    """A node and all that called it, the innermost first."""
    found = [path]
    while (caller := find_caller(found[-1], known, callers)) is not None and caller not in found:
        found.append(caller)
    return found


def _sum_beside(line: DeviceTimeline, events: pl.DataFrame, computes: pl.Series) -> pl.DataFrame:
    """What other streams did, by the phase that launched it: union of their events."""
    others = events.filter(~computes)
    step = pl.Series("step", _step_of(line, event_borders(others)[0]))
    own = others.select(step, pl.col("phase").fill_null("other"), "stream", "start_ns", "wall_ns")
    schema = polars_schema("device_steps")
    if not own.height:
        return pl.DataFrame(schema=schema)
    rows = []
    for (index, phase, stream), part in own.filter(pl.col("step") >= 0).group_by("step", "phase", "stream"):
        busy = merge_intervals(*event_borders(part))
        number = int(line.steps.numbers[index])
        rows.append((number, phase, stream, int(busy.starts[0]), busy.length_ns, 0, None))
    return pl.DataFrame(rows, schema=schema, orient="row")

"""What devices did in a step: streams, idle time by its cause, and where the host waited for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from detscope.analyze.device.figures import DeviceLines
from detscope.analyze.device.host import BlockingCalls, find_places, name_call
from detscope.analyze.device.idle import CAUSES, DATA, IdlePieces
from detscope.analyze.device.timeline import DeviceTimeline
from detscope.analyze.timeline.figures import (
    SpanNames,
    TimelineLane,
    TimelineWindow,
    WaitArrow,
    make_lane,
    tell_columns,
)

_ABOUT = ("operator", "module", "stage", "copy")


def device_window(found: DeviceLines, step: int | None, window: TimelineWindow) -> TimelineWindow:
    """The step until the first device is through with it."""
    for line in found.lines[:1]:
        own = np.flatnonzero(line.steps.numbers == step)
        if step is not None and len(own):
            return TimelineWindow(window.start_ns, max(window.end_ns, int(line.steps.ends[own[0]])))
    return window


def read_device_lanes(
    found: DeviceLines, window: TimelineWindow, known: SpanNames, lanes_before: int
) -> tuple[list[TimelineLane], list[WaitArrow]]:
    """Lanes of the devices of the first rank, and what its host waited for."""
    lanes: list[TimelineLane] = []
    arrows: list[WaitArrow] = []
    own = [
        pair for pair in zip(found.lines, found.pieces, strict=True) if pair[0].rank == found.lines[0].rank
    ]
    for line, pieces in own:
        streams: dict[int | None, int] = {}
        title = f"Device {line.device}"
        idle = make_lane(f"{title}: idle, by cause", "idle", _idle_rows(pieces), window, known)
        for stream in line.events["stream"].unique(maintain_order=True).to_list():
            rows = _event_rows(line.events.filter(pl.col("stream").eq_missing(stream)))
            named = title if stream is None else f"{title}: stream {stream}"
            lane = make_lane(named, "kernel", rows, window, known)
            if lane is not None:
                streams[stream] = lanes_before + len(lanes)
                lanes.append(lane)
        if idle is not None and streams:
            lanes.append(idle)
        calls = found.calls[line.rank]
        waits = make_lane("Waits for the device", "wait", _call_rows(line, calls, window), window, known)
        if waits is not None and line is own[0][0]:
            arrows += _point_arrows(line, waits, streams, lanes_before + len(lanes), window)
            lanes.append(waits)
    return lanes, arrows


def _event_rows(events: pl.DataFrame) -> pl.DataFrame:
    kernel = pl.col("kind") == "kernel"
    group = (
        pl.when(pl.col("communication").fill_null(False))
        .then(pl.lit("communication"))
        .when(kernel & pl.col("direction").is_in(["forward", "backward"]))
        .then("direction")
        .otherwise("kind")
    )
    about = tell_columns(**{name: pl.col(name) for name in _ABOUT})
    return events.select("name", "start_ns", "wall_ns", group=group, about=about)


def _idle_rows(pieces: IdlePieces) -> pl.DataFrame:
    """Gaps by cause; waiting for data is the part before the next launch, so it comes first."""
    causes = np.array([*CAUSES])
    split = pieces.starts + pieces.data_ns
    names = np.concatenate([np.full(len(split), causes[DATA]), causes[pieces.cause]])
    starts = np.concatenate([pieces.starts, split])
    lengths = np.concatenate([pieces.data_ns, pieces.ends - split])
    columns = {"cause": names.tolist(), "start_ns": starts, "wall_ns": lengths}
    frame = pl.DataFrame(columns, schema_overrides={"cause": pl.String})
    words = pl.col("cause").str.replace_all("_", " ")
    told = pl.col("cause").replace_strict(CAUSES, default="")
    return frame.filter(pl.col("wall_ns") > 0).select(
        "start_ns",
        "wall_ns",
        name=pl.lit("idle: ") + words,
        group=pl.lit("idle ") + pl.col("cause"),
        about=tell_columns(cause=told),
    )


def _call_rows(line: DeviceTimeline, calls: BlockingCalls, window: TimelineWindow) -> pl.DataFrame:
    rows = window.overlap_rows(calls.rows)
    around = window.overlap_rows(line.host)
    names, about = [], []
    for row, place in zip(rows.iter_rows(named=True), find_places(around, rows), strict=True):
        names.append(name_call(place.operator, row["name"], row["copy"]))
        told = {"call": row["name"], "operator": place.operator, "module": place.module, "line": place.stack}
        about.append("\n".join(f"{word}\t{text}" for word, text in told.items() if text))
    return rows.select("start_ns", "wall_ns", group=pl.lit("wait")).with_columns(
        pl.Series("name", names, pl.String), pl.Series("about", about, pl.String)
    )


def _point_arrows(
    line: DeviceTimeline,
    waits: TimelineLane,
    streams: dict[int | None, int],
    host_lane: int,
    window: TimelineWindow,
) -> Sequence[WaitArrow]:
    """From the last event that had ended when a call returned."""
    events = line.events.select("stream", end_ns=pl.col("start_ns") + pl.col("wall_ns")).sort("end_ns")
    ends, numbers = events["end_ns"].to_numpy(), events["stream"].to_list()
    found = []
    for start, length in zip(waits.starts.tolist(), waits.lengths.tolist(), strict=True):
        last = int(np.searchsorted(ends, start + length + window.start_ns, side="right")) - 1
        if last >= 0 and numbers[last] in streams:
            done_ns = int(ends[last]) - window.start_ns
            if done_ns >= start:  # else the device had been done before: nobody waited
                found.append(WaitArrow(streams[numbers[last]], done_ns, host_lane, start + length))
    return found

"""What one device did and what its host did, as sorted arrays; one `DeviceTimeline` per rank and device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from detscope.analyze.device.intervals import Intervals, Times, merge_intervals

BUSY_KINDS = ("kernel", "copy", "set")
TIMES = ("start_ns", "wall_ns")
KERNEL_COLUMNS = (
    "name",
    "start_ns",
    "wall_ns",
    "launch_ns",
    "operator",
    "communication",
    "blocks_per_sm",
    "occupancy",
)


@dataclass(frozen=True)
class StepWindows:
    """Steps as the device saw them: from the end of the previous step's work to the end of their own."""

    numbers: Times
    starts: Times
    ends: Times
    host_starts: Times
    host_ends: Times
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class DeviceTimeline:
    """One device of one rank. `events` are kernels, copies and sets in order of their start."""

    rank: int
    device: int
    events: pl.DataFrame
    host: pl.DataFrame  # of this rank, in no order
    steps: StepWindows
    window: Intervals  # steps where there are steps, else the span of the events

    @property
    def has_steps(self) -> bool:
        """Whether the window is made of steps."""
        return len(self.steps) > 0

    def events_of(self, *kinds: str) -> pl.DataFrame:
        """Events of some kinds."""
        if kinds == ("kernel",):
            return self.kernel_events
        return self.events.filter(pl.col("kind").is_in(kinds))

    @cached_property
    def kernel_events(self) -> pl.DataFrame:
        """All kernels, communication included, with the columns that figures of kernels need."""
        return _choose_rows(self.events.select("kind", *KERNEL_COLUMNS), pl.col("kind") == "kernel")

    @cached_property
    def kernels(self) -> Intervals:
        """Union of all kernels, communication included."""
        return merge_events(self.kernel_events)

    @cached_property
    def linked_kernels(self) -> Intervals:
        """Union of the kernels whose launch was recorded."""
        return merge_events(
            self.kernel_events.select("launch_ns", *TIMES).filter(pl.col("launch_ns").is_not_null())
        )

    @property
    def kernel_window(self) -> Intervals:
        """What shares of kernels are of: the steps, else from the first kernel to the last."""
        return self.window if self.has_steps else Intervals(self.kernels.starts[:1], self.kernels.ends[-1:])

    @cached_property
    def compute(self) -> Intervals:
        """Union of the kernels that are not communication."""
        return merge_events(self._kernel_times(~pl.col("communication").fill_null(False)))

    @cached_property
    def communication(self) -> Intervals:
        """Union of the kernels of collective operations."""
        return merge_events(self._kernel_times(pl.col("communication").fill_null(False)))

    def _kernel_times(self, condition: pl.Expr) -> pl.DataFrame:
        return self.kernel_events.select("communication", *TIMES).filter(condition)

    def host_times(self, *kinds: str) -> pl.DataFrame:
        """Begin and length of the host's events of some kinds."""
        return self.host.select("kind", *TIMES).filter(pl.col("kind").is_in(kinds))

    @cached_property
    def copies(self) -> Intervals:
        """Union of all copies."""
        return self._union_of("copy")

    @cached_property
    def sets(self) -> Intervals:
        """Union of all memory sets."""
        return self._union_of("set")

    def _union_of(self, kind: str) -> Intervals:
        return merge_events(self.events.select("kind", *TIMES).filter(pl.col("kind") == kind))

    @cached_property
    def busy(self) -> Intervals:
        """Union of kernels, copies and sets."""
        return merge_events(self.events)


def merge_events(frame: pl.DataFrame) -> Intervals:
    """The union of the rows' intervals."""
    starts, ends = event_borders(frame)
    return merge_intervals(starts, ends)


def event_borders(frame: pl.DataFrame) -> tuple[Times, Times]:
    """Begin and end of every row."""
    starts = frame["start_ns"].to_numpy().astype(np.int64)
    return starts, starts + frame["wall_ns"].fill_null(0).to_numpy().astype(np.int64)


def build_timelines(
    device_events: pl.DataFrame, host_events: pl.DataFrame, steps: pl.DataFrame | None = None
) -> list[DeviceTimeline]:
    """One per rank and device, in that order. Steps come from the host's marks, else from table `steps`."""
    events = _in_order(_choose_rows(device_events, pl.col("start_ns").is_not_null()), "start_ns", "wall_ns")
    if events.height == 0:
        return []
    events = events.with_columns(pl.col("rank").fill_null(0), pl.col("device").fill_null(0))
    hosts = host_events.with_columns(pl.col("rank").fill_null(0))
    found = []
    for rank in events["rank"].unique().sort().to_list():
        host = _choose_rows(hosts, pl.col("rank") == rank)
        marks = find_step_marks(host, steps)
        own = _choose_rows(events, pl.col("rank") == rank)
        for device in own["device"].unique().sort().to_list():
            found.append(
                _build_timeline(rank, device, _choose_rows(own, pl.col("device") == device), host, marks)
            )
    return found


def _choose_rows(frame: pl.DataFrame, condition: pl.Expr) -> pl.DataFrame:
    """The rows that fit; the frame itself where all do: a copy of a million events costs a hundred MB."""
    fits = frame.select(condition).to_series()
    return frame if fits.all() else frame.filter(fits)


def _in_order(frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Sorted rows; the frame itself where they are."""
    return frame if frame.select(pl.struct(columns).is_sorted()).item() else frame.sort(*columns)


def _build_timeline(
    rank: int, device: int, rows: pl.DataFrame, host: pl.DataFrame, marks: pl.DataFrame
) -> DeviceTimeline:
    events = _choose_rows(rows, pl.col("kind").is_in(BUSY_KINDS))
    windows = find_step_windows(marks, events)
    if len(windows) and events.height:
        window = merge_intervals(windows.starts, windows.ends)
    else:
        starts, ends = event_borders(events)
        window = merge_intervals(starts[:1], ends.max(keepdims=True) if len(ends) else ends)
    return DeviceTimeline(rank, device, events, host, windows, window)


def find_step_marks(host: pl.DataFrame, steps: pl.DataFrame | None) -> pl.DataFrame:
    """Steps as (step, start_ns, end_ns, name): the host's own marks, else the recorder's operator steps."""
    own = host.filter(pl.col("kind") == "step").sort("start_ns")
    if own.height:
        number = pl.col("name").str.extract(r"(\d+)\s*$").cast(pl.Int64, strict=False)
        return own.with_row_index("order").select(
            pl.coalesce(number, pl.col("order").cast(pl.Int64)).alias("step"),
            "start_ns",
            (pl.col("start_ns") + pl.col("wall_ns")).alias("end_ns"),
            "name",
        )
    empty = {"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String}
    if steps is None or steps.height == 0:
        return pl.DataFrame(schema=empty)
    whole = steps.filter((pl.col("phase") == "step") & pl.col("start_ns").is_not_null()).sort("start_ns")
    traced = whole.filter(pl.col("mode") == "ops")
    return (traced if traced.height else whole).select(
        "step",
        "start_ns",
        (pl.col("start_ns") + pl.col("wall_ns")).alias("end_ns"),
        pl.concat_str(pl.lit("step "), pl.col("step").cast(pl.String)).alias("name"),
    )


def find_step_windows(marks: pl.DataFrame, events: pl.DataFrame) -> StepWindows:
    """A step ends with the last event launched in it and begins when the work of the one before is done."""
    numbers = marks["step"].to_numpy().astype(np.int64)
    starts = marks["start_ns"].to_numpy().astype(np.int64)
    ends = marks["end_ns"].to_numpy().astype(np.int64)
    if len(numbers) == 0:
        return StepWindows(numbers, starts, ends, starts, ends)
    begins, finishes = event_borders(events)
    launches = events.select(pl.coalesce("launch_ns", "start_ns")).to_series().to_numpy().astype(np.int64)
    owner = _step_of(launches, starts, ends)
    owned = owner >= 0
    last_end = np.full(len(numbers), np.iinfo(np.int64).min)
    np.maximum.at(last_end, owner[owned], finishes[owned])
    device_ends = np.maximum.accumulate(np.maximum(ends, last_end))
    first_start = starts[0]
    if (owner == 0).any():  # work queued before the first step may still run when it begins
        earlier = finishes[~owned & (finishes < begins[owner == 0].min())]
        first_start = max(first_start, earlier.max(initial=first_start))
    before = np.concatenate([[first_start], device_ends[:-1]])
    return StepWindows(
        numbers, np.maximum(starts, before), device_ends, starts, ends, tuple(marks["name"].to_list())
    )


def _step_of(times: Times, starts: Times, ends: Times) -> Times:
    """Index of the step in which each time lies; -1 for none."""
    index = np.searchsorted(starts, times, side="right") - 1
    inside = (index >= 0) & (times < ends[np.maximum(index, 0)])
    return np.where(inside, index, -1)

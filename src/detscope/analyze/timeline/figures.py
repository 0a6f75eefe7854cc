"""Lanes of spans, as a page draws them; times are ns from the begin of their step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from detscope.analyze.memory.blocks import Longs

MOST_SPANS = 24_000  # of a lane, in all steps together: as much as a page can carry
LONGEST_NAME = 160  # kernels of templates have names of thousands of characters


@dataclass(frozen=True)
class TimelineWindow:
    """The time of a step on the clock of the tables."""

    start_ns: int
    end_ns: int

    def overlap_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows whose interval lies in the window, or reaches into it."""
        start, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("wall_ns")
        return rows.filter((start < self.end_ns) & (end > self.start_ns))


@dataclass(frozen=True)
class TimelineName:
    """What spans are named after, and what else is known of it."""

    text: str  # a path, an operator, a kernel, a phase
    kind: str  # phase, stage, module, operator, kernel, loader, ...
    about: Sequence[tuple[str, str]] = ()  # type, shapes, file:line, ... where they are known


@dataclass(frozen=True)
class TimelineLane:
    """Spans of one kind, in order of their begin; `depths` tells how they nest."""

    title: str
    starts: Longs
    lengths: Longs
    names: Longs  # index into the names of the run's timeline
    groups: Longs  # index into its groups: what is drawn in one colour
    depths: Longs
    left_out: int = 0  # the shortest ones, where there are too many
    left_out_ns: int = 0

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def own_lengths(self) -> Longs:
        """Length of each span without those inside it."""
        own = self.lengths.copy()
        ends = self.starts + self.lengths
        last = [-1] * (int(self.depths.max(initial=0)) + 1)  # the last span of every depth
        for place, depth in enumerate(self.depths.tolist()):
            around = (last[above] for above in range(depth - 1, -1, -1))
            parent = next((one for one in around if one >= 0 and ends[one] >= ends[place]), -1)
            if parent >= 0:
                own[parent] -= self.lengths[place]
            last[depth] = place
        return np.maximum(own, 0)


@dataclass(frozen=True)
class WaitArrow:
    """The host waited for the device: from the end of what it waited for to the end of the waiting call."""

    device_lane: int
    done_ns: int
    host_lane: int
    returned_ns: int


@dataclass(frozen=True)
class MemoryCurve:
    """Allocated bytes by category; a level holds until the next moment."""

    device: str
    moments: Sequence[int]
    bytes: Mapping[str, Sequence[int]]
    peak_ns: int
    peak_bytes: int
    since_recording: bool  # the recording began late: levels are changes since its begin


@dataclass(frozen=True)
class DrawnStep:
    """One step, or the whole of a recording without steps."""

    step: int | None
    title: str  # the median step, the slowest, ...
    remark: str  # what is special about its times
    wall_ns: int
    until_ns: int  # the last moment drawn: a device may end after the host
    lanes: Sequence[TimelineLane]
    arrows: Sequence[WaitArrow] = ()
    memory: MemoryCurve | None = None
    memory_why: str = ""  # why there is none


@dataclass(frozen=True)
class RunTimeline:
    """The steps of a run that can be looked into."""

    names: Sequence[TimelineName]
    groups: Sequence[str]
    steps: Sequence[DrawnStep]
    measured: int  # steps that the median and the slowest are chosen among
    drawn: int  # of these, steps whose spans were kept


@dataclass
class SpanNames:
    """Numbers for names and groups while lanes are made; the same in all steps."""

    names: dict[tuple[str, str, str], int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    most_spans: int = MOST_SPANS  # of a lane

    def number_name(self, text: str, kind: str, about: str = "") -> int:
        """The number of a name; what is known of it: a line of word and text each."""
        return self.names.setdefault((text[:LONGEST_NAME], kind, about), len(self.names))

    def number_group(self, group: str) -> int:
        """The number of a group."""
        return self.groups.setdefault(group, len(self.groups))


def make_lane(
    title: str, kind: str, rows: pl.DataFrame, window: TimelineWindow, known: SpanNames
) -> TimelineLane | None:
    """A lane of the rows in a window: name, group, start_ns, wall_ns, perhaps `about` (`tell_columns`).

    Of too many rows the shortest are left out. Rows of one interval come outermost first.
    """
    found = window.overlap_rows(rows)
    if not found.height:
        return None
    left_out = max(0, found.height - known.most_spans)
    left_out_ns = 0
    if left_out:
        shortest = found["wall_ns"].arg_sort()[:left_out]
        left_out_ns = int(found["wall_ns"].gather(shortest).sum())
        found = found.with_row_index("place").filter(~pl.col("place").is_in(shortest.implode()))
    found = found.sort("start_ns", -(pl.col("start_ns") + pl.col("wall_ns")), maintain_order=True)
    about = found["about"].to_list() if "about" in found.columns else [None] * found.height
    names = [
        known.number_name(name, kind, told or "")
        for name, told in zip(found["name"].to_list(), about, strict=True)
    ]
    groups = [known.number_group(group) for group in found["group"].to_list()]
    starts = found["start_ns"].to_numpy().astype(np.int64) - window.start_ns
    lengths = found["wall_ns"].to_numpy().astype(np.int64)
    columns = (np.array(names, np.int64), np.array(groups, np.int64), find_depths(starts, lengths))
    return TimelineLane(title, starts, lengths, *columns, left_out, left_out_ns)


def find_depths(starts: Longs, lengths: Longs) -> Longs:
    """A row for each span: below the spans around it, and free of those that only overlap it.

    Spans come by their begin, of those with one begin the outer first.
    """
    depths, row_ends = np.zeros(len(starts), np.int64), list[int]()
    ends = (starts + lengths).tolist()
    for place, (start, end) in enumerate(zip(starts.tolist(), ends, strict=True)):
        around = (row for row in range(len(row_ends) - 1, -1, -1) if row_ends[row] > start)
        depth = next((row + 1 for row in around if row_ends[row] >= end), 0)
        while depth < len(row_ends) and row_ends[depth] > start:
            depth += 1
        if depth == len(row_ends):
            row_ends.append(end)
        row_ends[depth] = end
        depths[place] = depth
    return depths


def tell_columns(**words: pl.Expr) -> pl.Expr:
    """What rows know beside their name: a line for each word whose text is not null."""
    lines = [
        pl.when(text.is_not_null()).then(pl.format(f"{word}\t{{}}", text)) for word, text in words.items()
    ]
    return pl.concat_str(lines, separator="\n", ignore_nulls=True)


def read_told(about: str) -> list[tuple[str, str]]:
    """The pairs again."""
    pairs = (line.partition("\t") for line in about.splitlines() if "\t" in line)
    return [(word, text) for word, _, text in pairs]

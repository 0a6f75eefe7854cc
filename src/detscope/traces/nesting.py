"""Who encloses whom: intervals that nest, on many threads, without a loop over events."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
NOBODY = -1


@dataclass(frozen=True)
class ThreadAxis:
    """Times of all threads on one axis: each thread has a stretch of its own."""

    origin_ns: int
    stretch_ns: int

    def place_times(self, threads: NDArray[np.integer], times_ns: Numbers) -> Numbers:
        """Where a thread's times lie."""
        inside = np.clip(times_ns - self.origin_ns, 0, self.stretch_ns - 1)
        return np.asarray(threads.astype(np.int64) * self.stretch_ns + inside)


def make_axis(starts_ns: Numbers, ends_ns: Numbers, threads: int) -> ThreadAxis:
    """An axis long enough for all events; where times are absurdly far apart, the last are clipped."""
    if not len(starts_ns):
        return ThreadAxis(0, 2)
    # room before the first event and behind the last: other times are clipped to where nothing is
    origin = int(starts_ns.min()) - 1
    longest = (1 << 62) // max(1, threads)
    return ThreadAxis(origin, min(int(ends_ns.max()) - origin + 3, longest))


class NestedIntervals:
    """Intervals that nest on their thread, kept level by level.

    Two intervals on one level never overlap, so that a search per level finds who encloses a moment.
    """

    def __init__(
        self, axis: ThreadAxis, threads: NDArray[np.integer], starts_ns: Numbers, walls_ns: Numbers
    ) -> None:
        self.axis = axis
        self._starts = axis.place_times(threads, starts_ns)
        # an interval without length still holds its own moment
        self._ends = np.maximum(axis.place_times(threads, starts_ns + walls_ns), self._starts + 1)
        order = np.lexsort((self._starts - self._ends, self._starts))
        ended = np.searchsorted(np.sort(self._ends), self._starts[order], side="right")
        depth = np.arange(len(order)) - ended
        self.depth = np.empty(len(order), np.int64)
        self.depth[order] = depth
        by_level = np.argsort(depth, kind="stable")
        borders = np.flatnonzero(np.diff(depth[by_level])) + 1
        levels = np.split(order[by_level], borders) if len(order) else []
        self._levels = [(level, self._starts[level], self._ends[level]) for level in levels]

    def find_innermost(
        self, threads: NDArray[np.integer], times_ns: Numbers, *, end_counts: bool = False
    ) -> Numbers:
        """For each moment on a thread: the innermost interval around it, or `NOBODY`."""
        moments = self.axis.place_times(threads, times_ns)
        found = np.full(len(moments), NOBODY, np.int64)
        open_ = np.arange(len(moments))
        for members, starts, ends in reversed(self._levels):
            index = find_interval(starts, ends + 1 if end_counts else ends, moments[open_])
            inside = index != NOBODY
            found[open_[inside]] = members[index[inside]]
            open_ = open_[~inside]
            if not len(open_):
                break
        return found

    def find_among(self, which: Numbers, threads: NDArray[np.integer], times_ns: Numbers) -> Numbers:
        """As `find_innermost`, but only among some of the intervals, which must not overlap on a thread."""
        which = which[np.argsort(self._starts[which], kind="stable")]
        moments = self.axis.place_times(threads, times_ns)
        return take_values(which, find_interval(self._starts[which], self._ends[which], moments))

    def find_parents(self) -> Numbers:
        """For each interval: the one right around it, or `NOBODY`."""
        parents = np.full(len(self._starts), NOBODY, np.int64)
        for (above, starts, ends), (members, moments, _) in pairwise(self._levels):
            parents[members] = take_values(above, find_interval(starts, ends, moments))
        return parents


def find_interval(starts: Numbers, ends: Numbers, moments: Numbers) -> Numbers:
    """For each moment: the interval it lies in, or `NOBODY`; the intervals are in order, none overlap."""
    if not len(starts):
        return np.full(len(moments), NOBODY, np.int64)
    index = np.searchsorted(starts, moments, side="right") - 1
    inside = (index >= 0) & (moments < ends[np.maximum(index, 0)])
    return np.where(inside, index, NOBODY)


def find_by_key(keys: Numbers, wanted: Numbers) -> Numbers:
    """For each wanted key: the index of the last entry that has it, or `NOBODY`; negative keys match none."""
    if not len(keys):
        return np.full(len(wanted), NOBODY, np.int64)
    order = np.argsort(keys, kind="stable")
    index = np.maximum(np.searchsorted(keys[order], wanted, side="right") - 1, 0)
    same = (keys[order][index] == wanted) & (wanted >= 0)
    return np.where(same, order[index], NOBODY)


def take_values(values: NDArray[np.generic], index: Numbers, missing: int = NOBODY) -> Numbers:
    """Values at an index, `missing` where it is `NOBODY`."""
    if not len(values):
        return np.full(len(index), missing, np.int64)
    return np.where(index >= 0, values[np.maximum(index, 0)], missing).astype(np.int64)


def self_times(walls_ns: Numbers, parents: Numbers) -> Numbers:
    """Time of each interval without that of the intervals right inside it; never below zero."""
    inside = np.zeros(len(walls_ns), np.int64)
    children = parents >= 0
    np.add.at(inside, parents[children], walls_ns[children])
    return np.asarray(np.maximum(walls_ns - inside, 0))


def merge_intervals(starts_ns: Numbers, ends_ns: Numbers) -> tuple[Numbers, Numbers]:
    """The union of intervals, in order."""
    if not len(starts_ns):
        return starts_ns, ends_ns
    order = np.argsort(starts_ns, kind="stable")
    starts, reach = starts_ns[order], np.maximum.accumulate(ends_ns[order])
    first = np.concatenate([[True], starts[1:] > reach[:-1]])
    return starts[first], reach[np.concatenate([first[1:], [True]])]

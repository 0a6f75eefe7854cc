"""Who encloses whom: intervals that nest, on many threads, without a loop over events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
NOBODY = -1


@dataclass(frozen=True)
class Axis:
    """Times of all threads on one axis: each thread has a stretch of its own."""

    origin_ns: int
    stretch_ns: int

    def place(self, threads: NDArray[np.integer], times_ns: Numbers) -> Numbers:
        """Where a thread's times lie."""
        inside = np.clip(times_ns - self.origin_ns, 0, self.stretch_ns - 1)
        return np.asarray(threads.astype(np.int64) * self.stretch_ns + inside)


def make_axis(starts_ns: Numbers, ends_ns: Numbers, threads: int) -> Axis:
    """An axis long enough for all events; where times are absurdly far apart, the last are clipped."""
    if not len(starts_ns):
        return Axis(0, 2)
    # room before the first event and behind the last: other times are clipped to where nothing is
    origin = int(starts_ns.min()) - 1
    longest = (1 << 62) // max(1, threads)
    return Axis(origin, min(int(ends_ns.max()) - origin + 3, longest))


class Nest:
    """Intervals that nest on their thread, kept level by level.

    Two intervals on one level never overlap, so that a search per level finds who encloses a moment.
    """

    def __init__(
        self, axis: Axis, threads: NDArray[np.integer], starts_ns: Numbers, walls_ns: Numbers
    ) -> None:
        self.axis = axis
        starts = axis.place(threads, starts_ns)
        # an interval without length still holds its own moment
        ends = np.maximum(axis.place(threads, starts_ns + walls_ns), starts + 1)
        self.order = np.lexsort((starts - ends, starts))
        ordered_starts, ordered_ends = starts[self.order], ends[self.order]
        ended = np.searchsorted(np.sort(ends), ordered_starts, side="right")
        depth = np.arange(len(starts)) - ended
        self.depth = np.empty(len(starts), np.int64)
        self.depth[self.order] = depth
        self._levels = []
        by_level = np.argsort(depth, kind="stable")
        borders = np.flatnonzero(np.diff(depth[by_level])) + 1
        for members in np.split(by_level, borders) if len(starts) else []:
            self._levels.append((self.order[members], ordered_starts[members], ordered_ends[members]))
        self._positions, self._ends = starts, ends

    @property
    def levels(self) -> int:
        """How deep it goes."""
        return len(self._levels)

    def innermost(
        self, threads: NDArray[np.integer], times_ns: Numbers, *, end_counts: bool = False
    ) -> Numbers:
        """For each moment on a thread: the innermost interval around it, or `NOBODY`."""
        moments = self.axis.place(threads, times_ns)
        found = np.full(len(moments), NOBODY, np.int64)
        open_ = np.arange(len(moments))
        for members, starts, ends in reversed(self._levels):
            index = np.searchsorted(starts, moments[open_], side="right") - 1
            last = np.maximum(index, 0)
            limit = ends[last] + 1 if end_counts else ends[last]
            inside = (index >= 0) & (moments[open_] < limit)
            found[open_[inside]] = members[last[inside]]
            open_ = open_[~inside]
            if not len(open_):
                break
        return found

    def innermost_of(self, which: Numbers, threads: NDArray[np.integer], times_ns: Numbers) -> Numbers:
        """As `innermost`, but only among some of the intervals, which must not overlap on a thread."""
        starts = self._positions[which]
        order = np.argsort(starts, kind="stable")
        moments = self.axis.place(threads, times_ns)
        index = np.searchsorted(starts[order], moments, side="right") - 1
        chosen = which[order][np.maximum(index, 0)] if len(which) else np.zeros(len(moments), np.int64)
        inside = (index >= 0) & (moments < self._ends[chosen]) if len(which) else np.zeros(len(moments), bool)
        return np.where(inside, chosen, NOBODY)

    def parents(self) -> Numbers:
        """For each interval: the one right around it, or `NOBODY`."""
        parents = np.full(len(self._positions), NOBODY, np.int64)
        for level in range(1, len(self._levels)):
            members, starts, _ = self._levels[level]
            above, above_starts, above_ends = self._levels[level - 1]
            index = np.searchsorted(above_starts, starts, side="right") - 1
            last = np.maximum(index, 0)
            inside = (index >= 0) & (starts < above_ends[last])
            parents[members[inside]] = above[last[inside]]
        return parents


def self_times(walls_ns: Numbers, parents: Numbers) -> Numbers:
    """Time of each interval without that of the intervals right inside it; never below zero."""
    inside = np.zeros(len(walls_ns), np.int64)
    children = parents >= 0
    np.add.at(inside, parents[children], walls_ns[children])
    return np.asarray(np.maximum(walls_ns - inside, 0))


def find_by_key(keys: Numbers, wanted: Numbers) -> Numbers:
    """For each wanted key: the index of the last entry that has it, or `NOBODY`; negative keys match none."""
    if not len(keys):
        return np.full(len(wanted), NOBODY, np.int64)
    order = np.argsort(keys, kind="stable")
    index = np.searchsorted(keys[order], wanted, side="right") - 1
    last = np.maximum(index, 0)
    same = (index >= 0) & (keys[order][last] == wanted) & (wanted >= 0)
    return np.where(same, order[last], NOBODY)


def pick(values: NDArray[np.generic], index: Numbers, missing: int = NOBODY) -> NDArray[np.int64]:
    """Values at an index, `missing` where it is `NOBODY`."""
    if not len(values):
        return np.full(len(index), missing, np.int64)
    return np.where(index >= 0, values[np.maximum(index, 0)], missing).astype(np.int64)


def outermost_merged(starts_ns: Numbers, ends_ns: Numbers) -> tuple[Numbers, Numbers]:
    """The union of intervals, in order."""
    if not len(starts_ns):
        return starts_ns, ends_ns
    order = np.argsort(starts_ns, kind="stable")
    starts, reach = starts_ns[order], np.maximum.accumulate(ends_ns[order])
    first = np.concatenate([[True], starts[1:] > reach[:-1]])
    return starts[first], reach[np.concatenate([first[1:], [True]])]

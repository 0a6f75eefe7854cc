"""Sets of intervals over sorted arrays: union, intersection, subtraction, measure. All without loops.

An `Intervals` is disjoint and sorted; half-open, so that neighbours that touch become one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Intervals:
    """Disjoint intervals in ascending order."""

    starts: Times
    ends: Times

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def length_ns(self) -> int:
        """Total length."""
        return int((self.ends - self.starts).sum())

    @property
    def span_ns(self) -> int:
        """From the first start to the last end."""
        return int(self.ends[-1] - self.starts[0]) if len(self) else 0


NOTHING = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def merge_intervals(starts: Times, ends: Times) -> Intervals:
    """The union of any intervals, in any order; empty and reversed ones count for nothing."""
    real = ends > starts
    starts, ends = starts[real], ends[real]
    if len(starts) == 0:
        return NOTHING
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate([[True], starts[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Intervals(starts[first], reach[last])


def single_interval(start: int, end: int) -> Intervals:
    """A single interval."""
    return merge_intervals(np.array([start], np.int64), np.array([end], np.int64))


def unite_sets(*sets: Intervals) -> Intervals:
    """The union of sets."""
    return merge_intervals(np.concatenate([s.starts for s in sets]), np.concatenate([s.ends for s in sets]))


def covered_before(intervals: Intervals, times: Times) -> Times:
    """For each time: how much of the set lies before it."""
    if len(intervals) == 0:
        return np.zeros(len(times), np.int64)
    lengths = np.concatenate([[0], np.cumsum(intervals.ends - intervals.starts)])
    index = np.searchsorted(intervals.starts, times, side="right")
    beyond = np.where(index > 0, np.maximum(0, intervals.ends[np.maximum(index, 1) - 1] - times), 0)
    return np.asarray(lengths[index] - beyond, dtype=np.int64)


def measure_overlap(intervals: Intervals, starts: Times, ends: Times) -> Times:
    """For each interval given: how much of it the set covers."""
    return covered_before(intervals, ends) - covered_before(intervals, starts)


def subtract_intervals(whole: Intervals, part: Intervals) -> Intervals:
    """What of `whole` is not in `part`."""
    if len(whole) == 0 or len(part) == 0:
        return whole
    return intersect_intervals(whole, _find_outside(part, int(whole.starts[0]), int(whole.ends[-1])))


def intersect_intervals(one_set: Intervals, other: Intervals) -> Intervals:
    """What is in both."""
    if len(one_set) == 0 or len(other) == 0:
        return NOTHING
    # every stretch of the intersection begins where one of the two begins inside the other
    from_first = _is_inside(other, one_set.starts)
    from_second = _is_inside(one_set, other.starts)
    starts = _sort_distinct(np.concatenate([one_set.starts[from_first], other.starts[from_second]]))
    ends = np.minimum(_end_at(one_set, starts), _end_at(other, starts))
    return Intervals(starts, ends)


def find_gaps(intervals: Intervals, start: int, end: int) -> Intervals:
    """The stretches between `start` and `end` that are not covered."""
    return subtract_intervals(single_interval(start, end), intervals)


def cut_intervals(intervals: Intervals, times: Times) -> Intervals:
    """The same stretches, cut where a time lies inside one of them; pieces may touch."""
    inner = times[_is_inside(intervals, times)]
    starts = _sort_distinct(np.concatenate([intervals.starts, inner]))
    ends = _sort_distinct(np.concatenate([intervals.ends, np.setdiff1d(inner, intervals.starts)]))
    return Intervals(starts, ends)


def measure_by_group(starts: Times, ends: Times, groups: Times, within: Intervals) -> dict[int, int]:
    """Length of the union of each group's intervals inside a set, by group."""
    real = ends > starts
    starts, ends, groups = starts[real], ends[real], groups[real]
    if len(starts) == 0:
        return {}
    # each group is moved to a stretch of time of its own, so that one union serves them all
    base = int(starts.min())
    stride = int(ends.max()) - base + 1
    moved = merge_intervals(starts - base + groups * stride, ends - base + groups * stride)
    owner = moved.starts // stride
    shift = base - owner * stride
    inside = measure_overlap(within, moved.starts + shift, moved.ends + shift)
    totals = np.zeros(int(groups.max()) + 1, np.int64)
    np.add.at(totals, owner, inside)
    return {int(group): int(totals[group]) for group in np.unique(groups)}


def _find_outside(intervals: Intervals, start: int, end: int) -> Intervals:
    starts = np.concatenate([[min(start, int(intervals.starts[0]))], intervals.ends])
    ends = np.concatenate([intervals.starts, [max(end, int(intervals.ends[-1]))]])
    real = ends > starts
    return Intervals(starts[real], ends[real])


def _is_inside(intervals: Intervals, times: Times) -> NDArray[np.bool_]:
    if len(intervals) == 0:
        return np.zeros(len(times), bool)
    index = np.searchsorted(intervals.starts, times, side="right") - 1
    return np.asarray((index >= 0) & (times < intervals.ends[np.maximum(index, 0)]), dtype=bool)


def _sort_distinct(times: Times) -> Times:
    """Sorted, each once; np.unique hashes, which takes five times as long on times that are nearly sorted."""
    ordered = np.sort(times, kind="stable")
    return ordered[np.concatenate([[True], ordered[1:] > ordered[:-1]])] if len(ordered) else ordered


def _end_at(intervals: Intervals, times: Times) -> Times:
    index = np.searchsorted(intervals.starts, times, side="right") - 1
    return np.asarray(intervals.ends[index], dtype=np.int64)

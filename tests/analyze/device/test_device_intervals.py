"""Sets of intervals against sets of ticks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detscope.analyze.device.intervals import (
    Intervals,
    cut_intervals,
    find_gaps,
    intersect_intervals,
    measure_by_group,
    measure_overlap,
    merge_intervals,
    subtract_intervals,
    unite_sets,
)

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=12)


def made(rows: list[tuple[int, int]]) -> Intervals:
    starts = np.array([start for start, _ in rows], np.int64)
    return merge_intervals(starts, starts + np.array([length for _, length in rows], np.int64))


def ticks(intervals: Intervals) -> set[int]:
    found: set[int] = set()
    for start, end in zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True):
        assert start < end
        assert not found & set(range(start, end)), "intervals of a set never overlap"
        found |= set(range(start, end))
    return found


def plain(rows: list[tuple[int, int]]) -> set[int]:
    return {tick for start, length in rows for tick in range(start, start + length)}


@given(pairs, pairs)
def test_union_intersection_and_subtraction_are_those_of_sets(left, right):
    a, b = made(left), made(right)
    assert ticks(a) == plain(left)
    assert ticks(unite_sets(a, b)) == plain(left) | plain(right)
    assert ticks(intersect_intervals(a, b)) == plain(left) & plain(right)
    assert ticks(subtract_intervals(a, b)) == plain(left) - plain(right)
    assert intersect_intervals(a, b).length_ns == len(plain(left) & plain(right))


@given(pairs, pairs)
def test_overlap_measures_each_interval_by_itself(left, right):
    starts = np.array([start for start, _ in right], np.int64)
    ends = starts + np.array([length for _, length in right], np.int64)
    expected = [len(plain(left) & plain([row])) for row in right]
    assert measure_overlap(made(left), starts, ends).tolist() == expected


@given(pairs, st.lists(st.integers(0, 80), max_size=8))
def test_cutting_keeps_every_tick_and_lets_none_cross_a_border(rows, times):
    pieces = cut_intervals(made(rows), np.unique(np.array(times, np.int64)))
    assert ticks(pieces) == plain(rows)
    for start, end in zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True):
        assert not any(start < time < end for time in times)


@given(pairs)
def test_gaps_are_what_is_left_of_a_stretch(rows):
    assert ticks(find_gaps(made(rows), 5, 70)) == set(range(5, 70)) - plain(rows)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15), st.integers(0, 3)), max_size=12), pairs)
def test_unions_by_group_are_the_unions_of_each_group(rows, within):
    starts = np.array([start for start, _, _ in rows], np.int64)
    ends = starts + np.array([length for _, length, _ in rows], np.int64)
    groups = np.array([group for _, _, group in rows], np.int64)
    found = measure_by_group(starts, ends, groups, made(within))
    for group, length in found.items():
        own = plain([(start, size) for start, size, g in rows if g == group])
        assert length == len(own & plain(within))

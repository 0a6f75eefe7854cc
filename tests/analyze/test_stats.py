from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detscope.analyze.stats import (
    bootstrap_interval,
    median_interval,
    percentile_or_why,
    robust_spread,
    samples_needed,
)


def test_a_percentile_needs_enough_samples():
    assert samples_needed(99) == 459
    assert samples_needed(95) == 90
    assert percentile_or_why([1.0] * 30, 99) == (None, "needs 459")
    assert percentile_or_why([1.0] * 459, 99) == (1.0, None)


@pytest.mark.parametrize(
    ("count", "low", "high"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (20, 6, 15), (100, 40, 61)]
)
def test_the_interval_of_the_median_has_the_textbook_ranks(count, low, high):
    interval = median_interval([float(value) for value in range(1, count + 1)])
    assert (interval.low, interval.high) == (low, high)


def test_five_samples_support_no_interval_of_the_median():
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert median_interval([]) is None


def test_the_interval_covers_the_true_median_as_often_as_promised():
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(2000):
        interval = median_interval(generator.exponential(size=25).tolist())
        hits += interval.low <= np.log(2) <= interval.high
    assert hits / 2000 >= 0.94


@given(st.lists(st.floats(0.1, 1e6), min_size=6, max_size=60))
def test_the_median_lies_in_its_interval(values):
    interval = median_interval(values)
    assert interval.low <= np.median(values) <= interval.high


def test_bootstrap_is_repeatable_and_refuses_too_few():
    values = np.arange(20.0)
    statistic = lambda sample: float(np.median(sample))  # noqa: E731
    assert bootstrap_interval(values, statistic) == bootstrap_interval(values, statistic)
    assert bootstrap_interval(values[:4], statistic) is None


def test_spread_is_that_of_a_normal_distribution_and_outliers_do_not_move_it():
    values = np.random.default_rng(0).normal(100, 15, 4000)
    assert robust_spread(values.tolist()) == pytest.approx(0.15, abs=0.01)
    values[:50] = 1e6
    assert robust_spread(values.tolist()) == pytest.approx(0.15, abs=0.015)


@pytest.mark.parametrize("count", [999, 1000, 1001, 1002, 5000, 100_000])
def test_the_interval_of_the_median_is_found_however_many_samples_there_are(count):
    interval = median_interval(range(count))
    half = 0.98 * count**0.5
    assert count / 2 - half - 4 <= interval.low <= count / 2 - half + 2
    assert interval.low + interval.high == count - 1

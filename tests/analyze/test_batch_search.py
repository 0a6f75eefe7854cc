"""The largest batch size for which something holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detscope.analyze.sweep.batch_search import MOST, largest_batch


@given(limit=st.integers(1, 5000), asked=st.lists(st.integers(1, 6000), max_size=6))
def test_it_is_found_exactly_whatever_was_asked_before(limit: int, asked: list[int]) -> None:
    known = {batch: batch <= limit for batch in asked}
    assert largest_batch(lambda batch: batch <= limit, known) == limit


def test_nothing_fits_means_none() -> None:
    assert largest_batch(lambda _: False, {4: False, 8: False}) is None


def test_what_always_holds_ends_at_the_most() -> None:
    assert largest_batch(lambda _: True) == MOST


@pytest.mark.parametrize("limit", [1, 37, 1000])
def test_few_questions_are_asked_and_none_twice(limit: int) -> None:
    asked: list[int] = []

    def holds(batch: int) -> bool:
        asked.append(batch)
        return batch <= limit

    largest_batch(holds, {1: True, 2048: False})
    assert len(asked) == len(set(asked)) <= 12

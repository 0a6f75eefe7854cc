"""Which images go through in which order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detscope.record.steps.schedule import Schedule
from detscope.sessions.infer.inference import order_steps, split_batches


def test_a_pass_holds_every_image_once_and_the_last_batch_may_be_smaller():
    assert split_batches(5, 2, 1) == [[0, 1], [2, 3], [4]]
    assert split_batches(2, 1, 3) == [[0], [1], [0], [1], [0], [1]]
    assert split_batches(1, 4, 1) == [[0]]


@given(st.integers(1, 60), st.integers(0, 5), st.integers(0, 6), st.integers(0, 4))
def test_recorded_steps_take_every_batch_once_in_order_whatever_the_schedule(count, warmup, bare, operators):
    if bare == 1:
        return  # every step bare: nothing could be recorded
    schedule = Schedule(warmup, bare, operators)
    batches = split_batches(count, 1, 1)
    order = order_steps(schedule, batches)
    recorded = [batch for index, batch in enumerate(order) if schedule.mode_of(index) == "recorded"]
    assert recorded == batches


def test_bare_steps_repeat_the_batch_before_and_the_batch_after_in_turn():
    schedule = Schedule(warmup_steps=0, bare_every=4)
    order = [batch[0] for batch in order_steps(schedule, split_batches(40, 1, 1))]
    modes = [schedule.mode_of(index) for index in range(len(order))]
    sides = Counter()
    for index, number in enumerate(order):
        if modes[index] == "bare":
            before = next(order[i] for i in range(index, -1, -1) if modes[i] == "recorded")
            after = next(order[i] for i in range(index, len(order)) if modes[i] == "recorded")
            sides["before" if number == before else "after"] += 1
            assert number in (before, after)
    assert sides["before"] + sides["after"] >= 12
    assert sides["before"] == pytest.approx(sides["after"], abs=1)

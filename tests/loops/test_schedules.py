from __future__ import annotations

import pytest
import torch

from detscope.loops.train import LearningRate, set_rates


def test_warm_up_rises_in_equal_steps_to_the_full_rate():
    schedule = LearningRate(warmup_steps=4)
    assert [schedule.factor_at(step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1])


def test_the_step_course_drops_at_whole_epochs_only():
    schedule = LearningRate("step", steps_per_epoch=5, step_epochs=2, gamma=0.1)
    assert [schedule.factor_at(step) for step in (0, 9, 10, 19, 20)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_the_cosine_begins_after_the_warm_up_and_ends_near_nothing():
    schedule = LearningRate("cosine", warmup_steps=10, total_steps=110)
    assert schedule.factor_at(10) == 1
    assert schedule.factor_at(60) == pytest.approx(0.5)
    assert 0 < schedule.factor_at(109) < 1e-3
    assert schedule.factor_at(500) == 0
    falling = [schedule.factor_at(step) for step in range(10, 110)]
    assert falling == sorted(falling, reverse=True)


def test_rates_follow_from_the_step_alone_so_that_a_resumed_training_needs_no_state():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    schedule = LearningRate("cosine", warmup_steps=2, total_steps=20)
    forwards = [set_rates(optimizer, schedule.factor_at(step)) for step in range(20)]
    assert set_rates(optimizer, schedule.factor_at(7)) == forwards[7]
    assert forwards[2] == 0.5

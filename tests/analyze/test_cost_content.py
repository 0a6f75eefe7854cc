"""Slopes of time over content."""

from __future__ import annotations

import numpy as np
import pytest

from detscope.analyze.step.cost_content import cost_against_content, fit_cost


def test_a_straight_line_gives_its_slope_and_explains_everything():
    found = fit_cost([(boxes, 2 + 0.03 * boxes) for boxes in range(20)], 100, "detections")
    assert found.slope == pytest.approx(3.0)
    assert found.r2 == pytest.approx(1.0)
    assert found.ci95 == pytest.approx((3.0, 3.0), abs=1e-5)
    assert found.n == 20


def test_noise_lowers_what_is_explained_and_the_interval_holds_the_truth():
    random = np.random.default_rng(0)
    x = random.uniform(0, 100, 400)
    found = fit_cost(list(zip(x, 1 + 0.01 * x + random.normal(0, 0.5, 400), strict=True)), 100, "detections")
    assert 0.1 < found.r2 < 0.5
    assert found.ci95[0] < 1.0 < found.ci95[1]


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([], "detections are not known for this model"),
        ([(1, 2), (2, 3)], "2 samples; 3 are the least for a slope"),
        ([(7, 1), (7, 2), (7, 3)], "no variation: always 7 detections"),
    ],
)
def test_an_undefined_slope_is_null_and_says_why(pairs, why):
    found = fit_cost(pairs, 100, "detections")
    assert (found.slope, found.r2, found.why) == (None, None, why)


def test_equal_times_have_no_variation_to_explain():
    found = fit_cost([(1, 5.0), (2, 5.0), (3, 5.0)], 1, "pixels")
    assert (found.slope, found.r2) == (0.0, None)


def test_a_stage_that_did_not_run_took_no_time_and_unknown_content_is_left_out():
    per_step = {
        step: {"whole": 10.0 + step, "decode": 1.0, "other": 1.0, "forward": 8.0, "backbone": 5.0}
        for step in range(5)
    }
    per_step[4]["mask"] = 100.0
    contents = {step: {"detections": 10.0 * step, "pixels": None} for step in range(5)}
    found = cost_against_content(per_step, contents)
    costs = {(row.stage, row.measure): row for row in found}
    assert {stage for stage, _ in costs} == {"whole", "decode", "backbone", "mask"}
    assert costs["whole", "detections"].slope == pytest.approx(10.0)
    assert costs["mask", "detections"].n == 5
    assert costs["mask", "detections"].slope > 0
    assert costs["whole", "pixels"].why == "pixels are not known for this model"
    assert costs["whole", "proposals"].n == 0

"""The latency of an inference: its distribution, the slowest images, what a percentile needs, one NMS."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest

from detscope.analyze.step.latency import (
    cumulated_shares,
    latency_bins,
    percentile_needs,
    slowest_images,
    sum_stages,
)
from detscope.analyze.step.modules import StageFigures
from detscope.analyze.step.steps import Outlier, StepFigures, choose_typical_steps
from made_figures import made_figure


def needs_of(n: int, verb: str = "infer", batch: int = 1, **inference: Any) -> list[str]:
    found = percentile_needs(StepFigures(mean_n=n), verb, {"inference": inference}, batch)
    return [f"p{need.percentile} {need.words}" for need in found]


def test_a_percentile_says_how_many_images_it_needs_and_what_to_type() -> None:
    assert needs_of(60, limit=60) == ["p95 needs 90 images: --limit 90", "p99 needs 459 images: --limit 459"]


def test_files_that_have_all_been_measured_are_measured_again_and_not_more_of_them() -> None:
    assert needs_of(24, images=["photos"], repeat=2)[0] == "p95 needs 90 images: --repeat 8"
    assert needs_of(24, images=["photos"], limit=24)[0] == "p95 needs 90 images: --limit 90"


def test_batches_are_counted_where_a_pass_takes_several_images() -> None:
    assert needs_of(15, batch=4, limit=60)[0] == "p95 needs 90 batches: --limit 360"


def test_a_training_is_told_its_steps_and_a_recorded_file_only_how_many() -> None:
    assert needs_of(20, "train")[0] == "p95 needs 90 steps: --steps 90"
    assert needs_of(6, "import")[0] == "p95 needs 90 steps"


def test_what_the_samples_support_needs_nothing_and_neither_does_a_run_without_steps() -> None:
    known = StepFigures(mean_n=500, p50=1.0, p95=2.0, p99=3.0)
    assert percentile_needs(known, "infer", {}, 1) == ()
    assert percentile_needs(StepFigures(), "infer", {}, 1) == ()


@pytest.mark.parametrize("count", [5, 24, 300, 5000])
def test_every_image_is_in_one_stretch_and_shares_add_up(count) -> None:
    chance = random.Random(count)
    durations = [20 * chance.lognormvariate(0, 0.2) for _ in range(count - 1)] + [400.0]
    bins = latency_bins(durations)
    assert sum(one.n for one in bins) == count
    assert sum(one.share for one in bins) == pytest.approx(1.0)
    assert bins[-1].up_to == pytest.approx(1.0)
    for one in bins:
        high = one.high_ms if one.high_ms is not None else float("inf")
        assert one.n == sum(one.low_ms <= ms < high for ms in durations)
        assert one.up_to == pytest.approx(sum(ms < high for ms in durations) / count)


def test_one_image_far_away_does_not_squeeze_all_others_into_one_stretch() -> None:
    chance = random.Random(7)
    bins = latency_bins([chance.uniform(18, 22) for _ in range(200)] + [4000.0])
    assert bins[-1].high_ms is None
    assert bins[-1].n == 1
    assert len(bins) >= 5


def test_equal_times_are_one_stretch_and_few_are_none() -> None:
    assert [one.n for one in latency_bins([7.0] * 12)] == [12]
    assert latency_bins([1.0, 2.0, 3.0, 4.0]) == []


def test_the_cumulated_share_ends_at_one_with_the_slowest_image() -> None:
    spent, shares = cumulated_shares([float(ms) for ms in range(1, 2001)])
    assert (spent[-1], shares[-1]) == (2000.0, 1.0)
    assert len(spent) <= 401
    assert all(share == pytest.approx(ms / 2000) for ms, share in zip(spent, shares, strict=True))


def test_the_slowest_images_come_with_size_boxes_and_proposals() -> None:
    walls = [20, 21, 90, 22, 20, 21, 20, 35]
    steps = pl.DataFrame(
        [(step, "recorded", "step", 0, wall * 1_000_000) for step, wall in enumerate(walls)],
        schema=["step", "mode", "phase", "start_ns", "wall_ns"],
        orient="row",
    )
    images = pl.DataFrame(
        [(step, 0, f"{step}.jpg", 640, 480, 10 * step, step) for step in range(8)],
        schema=["step", "position", "name", "width", "height", "detections", "above_score"],
        orient="row",
    )
    content = pl.DataFrame({"step": list(range(8)), "proposals": [100 + step for step in range(8)]})
    typical = choose_typical_steps(steps, find_slow_start=False)
    far = made_figure(Outlier, {"step": 2, "why": "forward took 69.0 ms more than usual", "special": ()})
    first, second, *_ = slowest_images(steps, images, content, typical, [far])
    assert (first.file, first.ms, first.size, first.boxes, first.above_score, first.proposals) == (
        "2.jpg",
        90.0,
        "640 x 480",
        20,
        2,
        102,
    )
    assert first.why == "forward took 69.0 ms more than usual"
    assert (second.file, second.why) == ("7.jpg", None)


def test_boxes_of_a_model_whose_output_is_not_understood_are_not_told_as_0() -> None:
    steps = pl.DataFrame(
        [(step, "recorded", "step", 0, 10**6) for step in range(2)],
        schema=["step", "mode", "phase", "start_ns", "wall_ns"],
        orient="row",
    )
    columns = {"step": [0], "name": ["a"], "width": [1], "height": [1]}
    images = pl.DataFrame({**columns, "detections": [None], "above_score": [None]})
    content = pl.DataFrame({"step": [0], "proposals": [None]})
    found = slowest_images(steps, images, content, choose_typical_steps(steps), ())
    assert found[0].boxes is None
    assert found[0].proposals is None


def test_suppression_in_two_stages_is_one_sum() -> None:
    def stage(name: str, ms: float) -> StageFigures:
        return made_figure(StageFigures, {"name": name, "total_ms": ms, "share": ms / 100})

    found = sum_stages([stage("rpn", 9.0), stage("rpn.nms", 3.0), stage("roi_heads.postprocess.nms", 2.0)])
    assert found is not None
    assert (found.ms, found.share) == (5.0, pytest.approx(0.05))
    assert found.stages == ("rpn.nms", "roi_heads.postprocess.nms")
    assert sum_stages([stage("backbone", 1.0)]) is None

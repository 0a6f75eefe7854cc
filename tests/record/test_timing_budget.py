"""Timing transforms costs a small share of a worker's time, whatever the pipeline, and no figure leans."""

from __future__ import annotations

from collections import Counter
from random import Random

import polars as pl
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from detscope.analyze.step.transforms import mean_region_ms, transform_figures
from detscope.record.loader import instrument_iterator, unwrap_batch
from detscope.record.steps.rows import make_transform_rows
from detscope.record.transforms.budget import AIM, START_NS, TimingBudget
from detscope.record.transforms.timer import end_timing
from detscope.runs.writer import polars_schema

BATCHES = 20_000


def draw_all(budget, works_ns, cost_ns):
    drawn = []
    for worked_ns in works_ns:
        many = budget.draw_batch()
        budget.add_batch(worked_ns, cost_ns if many else None)
        drawn.append(many)
    return drawn


@pytest.mark.parametrize("cost_us", [1, 60, 500, 2_500], ids=["tiny", "small", "as large", "larger"])
def test_timing_costs_its_share_of_the_work_whatever_a_batch_takes(cost_us):
    works_ns = [500_000] * BATCHES
    drawn = draw_all(TimingBudget(Random(1)), works_ns, cost_us * 1000)
    paid_ns = sum(many > 0 for many in drawn) * cost_us * 1000
    most_ns = START_NS + cost_us * 1000 + AIM * sum(works_ns)
    assert paid_ns <= 1.2 * most_ns
    if cost_us * 1000 < AIM * works_ns[0]:
        assert set(drawn) == {1}, "what costs nearly nothing is done for every batch"
    else:
        assert paid_ns >= 0.5 * AIM * sum(works_ns), "and what may be spent is"


def test_sums_over_what_was_drawn_are_right_for_all_and_nothing_that_recurs_is_met_by_all():
    random = Random(5)
    works_ns = [int(random.uniform(1, 9) * 100_000) * (1 + number // 10_000) for number in range(BATCHES)]
    drawn = draw_all(TimingBudget(Random(2)), works_ns, 20_000)
    told_ns = sum(many * worked_ns for many, worked_ns in zip(drawn, works_ns, strict=True))
    assert told_ns == pytest.approx(sum(works_ns), rel=0.06)
    assert sum(drawn) == pytest.approx(BATCHES, rel=0.06)
    places = [number for number, many in enumerate(drawn) if many > 1]
    for period in (2, 4, 8):
        met = Counter(place % period for place in places)
        assert min(met.values()) > 0.8 * len(places) / period


class Small:
    def __call__(self, image):
        return image


class Many(Dataset):
    """Transforms that take less than it takes to time them."""

    def __init__(self, images):
        self.images, self.transforms = images, [Small() for _ in range(30)]

    def __len__(self):
        return self.images

    def __getitem__(self, index):
        image = torch.zeros(1)
        for transform in self.transforms:
            image = transform(image)
        return image


@pytest.mark.parametrize("workers", [0, 1])
def test_of_a_pipeline_of_small_transforms_some_batches_are_timed_and_figures_say_how_many(workers):
    loader = DataLoader(Many(1600), batch_size=4, num_workers=workers)
    try:
        timings = [unwrap_batch(item)[1] for item in instrument_iterator(loader)]
    finally:
        end_timing()
    timed = [timing for timing in timings if timing.work is not None]
    assert timed[0] is timings[0] and len(timed) < len(timings) / 2
    assert all(timing.spans and timing.end_ns > timing.start_ns for timing in timings)
    rows = [row for step, timing in enumerate(timings) for row in make_transform_rows(step, timing)]
    figures = transform_figures(pl.DataFrame(rows, polars_schema("transforms"), orient="row"))
    small = [one for one in figures if one.name.startswith("Small")]
    assert len(small) == 30
    assert {(one.calls_per_image, one.images_timed) for one in small} == {(1.0, 4 * len(timed))}
    assert sum(one.share for one in figures) == pytest.approx(1, abs=0.01)


def test_a_batch_that_stands_for_others_counts_as_often():
    about = ("worker", 2)  # where, images
    rows = [
        (0, 0, "batch", "batch", None, None, *about, 10_000_000, 10_000_000, 1, 1, None, 1),
        (0, 0, "Blur", "transform", "a.Blur", None, *about, 8_000_000, 8_000_000, 2, 2, None, 1),
        (7, 0, "batch", "batch", None, None, *about, 6_000_000, 6_000_000, 1, 1, None, 3),
        (7, 0, "Blur", "transform", "a.Blur", None, *about, 4_000_000, 4_000_000, 2, 1, None, 3),
    ]
    table = pl.DataFrame(rows, polars_schema("transforms"), orient="row")
    blur = next(one for one in transform_figures(table) if one.name == "Blur")
    assert blur.ms_per_image == pytest.approx((8 + 3 * 4) / (2 + 3 * 2))
    assert blur.share == pytest.approx((8 + 3 * 4) / (10 + 3 * 6))
    assert (blur.calls_per_image, blur.applied_per_image) == (1, (2 + 3) / 8)
    assert blur.images_timed == 4
    assert mean_region_ms(table)["transform"] == pytest.approx((8 + 3 * 4) / 4)
    all_timed = table.with_columns(stands_for=pl.lit(None, pl.Int64))
    assert next(one for one in transform_figures(all_timed) if one.name == "Blur").ms_per_image == 3

"""Average precision by the rules of PASCAL VOC: per class, at an overlap of one half.

Differs from COCO's rules: a detection belongs to the object it overlaps most, also when that one was
found before; then it is a duplicate and wrong. Objects marked difficult count neither way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detscope.accuracy.matching import measure_box_overlaps
from detscope.accuracy.records import Detections, Flags, GroundTruth, Integers

LEAST_OVERLAP = 0.5


@dataclass(frozen=True)
class VocAccuracy:
    """Average precision per class; None where the class has no object that counts."""

    eleven_point: tuple[float | None, ...]  # as in 2007
    area: tuple[float | None, ...]  # as since 2010
    objects: tuple[int, ...]  # that count, difficult ones left out

    def compute_mean(self, which: str) -> float | None:
        """Mean over the classes that have objects; `which` is eleven_point or area."""
        defined = [value for value in getattr(self, which) if value is not None]
        return sum(defined) / len(defined) if defined else None


def measure_voc(truth: GroundTruth, found: Detections) -> VocAccuracy:
    """Measure detections class by class; equal scores count in the order they were given."""
    eleven_point: list[float | None] = []
    area: list[float | None] = []
    # VOC knows no crowds; where other data sets mark them, they count as little as difficult objects.
    aside = truth.difficult | truth.crowd
    objects = np.bincount(truth.category[~aside], minlength=len(truth.category_ids)).tolist()
    for category, wanted in enumerate(objects):
        if not wanted:
            eleven_point.append(None)
            area.append(None)
            continue
        things = np.flatnonzero(truth.category == category)
        rows = np.flatnonzero(found.category == category)
        rows = rows[np.argsort(-found.scores[rows], kind="stable")]
        right, counted = _judge_detections(truth, found, things, rows, aside)
        hits = np.arange(1, int(right.sum()) + 1)
        precision = hits / np.cumsum(counted)[right]
        # The best precision at recalls from 0, 0.1, ..., 1 on; in whole numbers: 3 of 10 reach 0.3.
        best = [precision[hits * 10 >= tenth * wanted].max(initial=0.0) for tenth in range(11)]
        eleven_point.append(float(sum(best) / 11))
        # Under the precision made monotone every hit adds one part of recall.
        area.append(float(np.maximum.accumulate(precision[::-1]).sum() / wanted))
    return VocAccuracy(tuple(eleven_point), tuple(area), tuple(objects))


def _judge_detections(
    truth: GroundTruth, found: Detections, things: Integers, rows: Integers, aside: Flags
) -> tuple[Flags, Flags]:
    """For each row, best first: whether it is right, and whether it counts at all."""
    nearest = _find_nearest(truth, found, things, rows)
    hits = nearest >= 0
    counted = ~(hits & aside[nearest])
    hits &= counted
    right = np.zeros(len(rows), dtype=np.bool_)
    # The first of those that chose the same object is right, the others are duplicates.
    _, first = np.unique(nearest[hits], return_index=True)
    right[np.flatnonzero(hits)[first]] = True
    return right, counted


def _find_nearest(truth: GroundTruth, found: Detections, things: Integers, rows: Integers) -> Integers:
    """The object of its image that each detection overlaps most, the first of equals; -1: none enough."""
    by_image = things[np.argsort(truth.image[things], kind="stable")]
    first = np.searchsorted(truth.image[by_image], found.image[rows], side="left")
    count = np.searchsorted(truth.image[by_image], found.image[rows], side="right") - first
    nearest = np.full(len(rows), -1, dtype=np.int64)
    best = np.full(len(rows), LEAST_OVERLAP)
    for step in range(int(count.max(initial=0))):
        some = np.flatnonzero(count > step)
        thing = by_image[first[some] + step]
        no_crowd = np.zeros(len(some), dtype=np.bool_)
        overlaps = measure_box_overlaps(found.boxes[rows[some]], truth.boxes[thing], no_crowd)
        better = (overlaps > best[some]) | ((overlaps == best[some]) & (nearest[some] < 0))
        best[some[better]], nearest[some[better]] = overlaps[better], thing[better]
    return nearest

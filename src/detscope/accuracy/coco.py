"""COCO's figures: average precision and recall over ten overlaps, by size of object, by class.

Equal to pycocotools in every figure. What it writes as -1 is None here: without ground truth there is
nothing to be precise about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from detscope.accuracy.matching import Matches, match, sort_detections
from detscope.accuracy.overlaps import (
    KEYPOINT_COUNT,
    Overlap,
    box_overlap,
    keypoint_areas,
    keypoint_overlap,
    mask_areas,
    mask_overlap,
)
from detscope.accuracy.records import Detections, Flags, Floats, GroundTruth

Kind = Literal["boxes", "masks", "keypoints"]
Figures = dict[str, float | None]

THRESHOLDS: Floats = np.linspace(0.5, 0.95, 10)
RECALLS: Floats = np.linspace(0.0, 1.0, 101)
_EVERY_SIZE = (0.0, 1e10)
_SIZES = {"": _EVERY_SIZE, "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}


@dataclass(frozen=True)
class Setup:
    """Ranges of area and numbers of detections per image and class that COCO asks for."""

    sizes: dict[str, tuple[float, float]]
    most: tuple[int, ...]


SETUPS: dict[Kind, Setup] = {
    "boxes": Setup(_SIZES, (1, 10, 100)),
    "masks": Setup(_SIZES, (1, 10, 100)),
    "keypoints": Setup({size: limits for size, limits in _SIZES.items() if size != "small"}, (20,)),
}


@dataclass(frozen=True)
class CocoAccuracy:
    """Precision at 101 recalls and largest recall; not a number where there is no ground truth."""

    kind: Kind
    precision: Floats  # [classes, sizes, most, thresholds, recalls]
    recall: Floats  # [classes, sizes, most, thresholds]
    matches: Matches

    def figures(self, category: int | None = None) -> Figures:
        """The twelve figures (ten for keypoints) by name, of one class or over all; None is undefined."""
        chosen = slice(None) if category is None else slice(category, category + 1)
        precision, recall = self.precision[chosen], self.recall[chosen]
        setup, last = SETUPS[self.kind], len(SETUPS[self.kind].most) - 1
        named: Figures = {}
        for name, at in (("AP", slice(None)), ("AP50", 0), ("AP75", 5)):
            named[name] = _mean(precision[:, 0, last, at])
        for number, size in enumerate(list(setup.sizes)[1:], start=1):
            named[f"AP_{size}"] = _mean(precision[:, number, last])
        if self.kind == "keypoints":
            for name, at in (("AR", slice(None)), ("AR50", 0), ("AR75", 5)):
                named[name] = _mean(recall[:, 0, last, at])
        else:
            named |= {f"AR_{most}": _mean(recall[:, 0, number]) for number, most in enumerate(setup.most)}
        for number, size in enumerate(list(setup.sizes)[1:], start=1):
            named[f"AR_{size}"] = _mean(recall[:, number, last])
        return named


def coco_accuracy(truth: GroundTruth, found: Detections, kind: Kind = "boxes") -> CocoAccuracy:
    """Measure detections against ground truth by COCO's rules; objects marked difficult are ignored."""
    setup = SETUPS[kind]
    overlap, areas = _measure(truth, found, kind)
    ignored = _ignored(truth, setup, kind)
    dets = sort_detections(found, max(1, len(truth.image_ids)), max(setup.most))
    matches = match(truth, dets, overlap, THRESHOLDS, ignored)
    limits = np.array(list(setup.sizes.values()))
    # A detection that found nothing counts as wrong only in the range its own size belongs to.
    counted = (areas[dets.row] >= limits[:, :1]) & (areas[dets.row] <= limits[:, 1:])
    classes = len(truth.category_ids)
    shape = (classes, len(setup.sizes), len(setup.most), len(THRESHOLDS))
    precision, recall = np.full((*shape, len(RECALLS)), np.nan), np.full(shape, np.nan)
    objects = _objects_per_class(truth, ignored)
    det_border = np.searchsorted(dets.category, np.arange(classes + 1))
    candidate_border = np.searchsorted(dets.category[matches.candidates], np.arange(classes + 1))
    for category in range(classes):
        curve = _Curve(
            matches,
            counted,
            slice(det_border[category], det_border[category + 1]),
            slice(candidate_border[category], candidate_border[category + 1]),
        )
        for number, most in enumerate(setup.most):
            at = (category, slice(None), number)
            curve.fill(precision[at], recall[at], objects[:, category], most)
    return CocoAccuracy(kind, precision, recall, matches)


def _measure(truth: GroundTruth, found: Detections, kind: Kind) -> tuple[Overlap, Floats]:
    if kind == "masks":
        return mask_overlap(truth, found), mask_areas(found)
    if kind == "keypoints":
        return keypoint_overlap(truth, found), keypoint_areas(found)
    return box_overlap(truth, found), found.boxes[:, 2] * found.boxes[:, 3]


def can_measure_keypoints(truth: GroundTruth) -> bool:
    """Whether COCO's similarity is defined for these points: it knows the 17 of a person."""
    return truth.keypoints is not None and truth.keypoints.shape[1] == KEYPOINT_COUNT


def _ignored(truth: GroundTruth, setup: Setup, kind: Kind) -> Flags:
    limits = np.array(list(setup.sizes.values()))
    outside = (truth.area < limits[:, :1]) | (truth.area > limits[:, 1:])
    ignored: Flags = outside | truth.crowd | truth.difficult
    if kind == "keypoints" and truth.keypoints is not None:
        ignored |= ~(truth.keypoints[:, :, 2] > 0).any(axis=1)
    return ignored


def _objects_per_class(truth: GroundTruth, ignored: Flags) -> Floats:
    """Objects to be found, [sizes, classes]."""
    return np.array(
        [np.bincount(truth.category[~row], minlength=len(truth.category_ids)) for row in ignored],
        dtype=np.float64,
    )


class _Curve:
    """The precision-recall curves of one class, all sizes and thresholds together.

    Only detections that overlap something can be right, and precision is asked for only where recall
    grows, so the curves are kept at those detections; the others only count.
    """

    def __init__(self, matches: Matches, counted: Flags, dets: slice, candidates: slice) -> None:
        scores = matches.dets.scores[dets]
        self._order = np.argsort(-scores, kind="stable")
        self._rank = matches.dets.rank[dets]
        self._counted = counted[:, dets]
        place = np.empty(len(scores), dtype=np.int64)
        place[self._order] = np.arange(len(scores))
        at = matches.candidates[candidates] - dets.start
        by_place = np.argsort(place[at])
        self._at, self._place = at[by_place], place[at[by_place]]
        found = matches.found[:, :, candidates][:, :, by_place]
        hit = found >= 0
        sizes = np.arange(len(counted))[:, None, None]
        ignored = hit & matches.ignored_objects[sizes, found] if found.size else hit
        self._right = hit & ~ignored
        # What a candidate adds to the count of detections, beyond what it would add if it had found nothing.
        counts = np.where(hit, ~ignored, self._counted[:, None, self._at])
        self._extra = counts.astype(np.int64) - self._counted[:, None, self._at]

    def fill(self, precision: Floats, recall: Floats, objects: Floats, most: int) -> None:
        """Write [sizes, thresholds, recalls] and [sizes, thresholds], with so many detections per image."""
        counting = (self._counted & (self._rank < most))[:, self._order].cumsum(axis=1)
        kept = self._rank[self._at] < most
        right = self._right[:, :, kept].cumsum(axis=2).astype(np.float64)
        counted = counting[:, None, self._place[kept]] + self._extra[:, :, kept].cumsum(axis=2)
        # spacing(1) as in pycocotools: figures are equal to the last digit
        exact = np.where(self._right[:, :, kept], right / (counted + np.spacing(1)), 0.0)
        envelope = np.maximum.accumulate(exact[:, :, ::-1], axis=2)[:, :, ::-1]
        padded = np.concatenate([envelope, np.zeros((*envelope.shape[:2], 1))], axis=2)
        for size in np.flatnonzero(objects):
            reached = right[size] / objects[size]
            recall[size] = reached[:, -1] if kept.any() else 0.0
            for threshold in range(len(reached)):
                places = np.searchsorted(reached[threshold], RECALLS, side="left")
                precision[size, threshold] = padded[size, threshold, places]


def _mean(values: Floats) -> float | None:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if defined.size else None

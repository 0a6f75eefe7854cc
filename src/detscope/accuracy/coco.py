"""COCO's figures: average precision and recall over ten overlaps, by size of object, by class.

Equal to pycocotools in every figure. What it writes as -1 is None here: without ground truth there is
nothing to be precise about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from detscope.accuracy.matching import (
    KEYPOINT_COUNT,
    Matches,
    Overlap,
    compare_boxes,
    compare_keypoints,
    compare_masks,
    match_detections,
    measure_keypoint_areas,
    measure_mask_areas,
    sort_detections,
)
from detscope.accuracy.records import Detections, Flags, Floats, GroundTruth

Kind = Literal["boxes", "masks", "keypoints"]
Figures = dict[str, float | None]

THRESHOLDS: Floats = np.linspace(0.5, 0.95, 10)
RECALLS: Floats = np.linspace(0.0, 1.0, 101)
_EVERY_SIZE = (0.0, 1e10)
_SIZES = {"": _EVERY_SIZE, "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}


@dataclass(frozen=True)
class CocoSetup:
    """Ranges of area and numbers of detections per image and class that COCO asks for."""

    sizes: dict[str, tuple[float, float]]
    most: tuple[int, ...]


SETUPS: dict[Kind, CocoSetup] = {
    "boxes": CocoSetup(_SIZES, (1, 10, 100)),
    "masks": CocoSetup(_SIZES, (1, 10, 100)),
    "keypoints": CocoSetup({size: limits for size, limits in _SIZES.items() if size != "small"}, (20,)),
}


@dataclass(frozen=True)
class CocoAccuracy:
    """Precision at 101 recalls and largest recall; not a number where there is no ground truth."""

    kind: Kind
    precision: Floats  # [classes, sizes, most, thresholds, recalls]
    recall: Floats  # [classes, sizes, most, thresholds]
    matches: Matches

    def compute_figures(self, category: int | None = None) -> Figures:
        """The twelve figures (ten for keypoints) by name, of one class or over all; None is undefined."""
        chosen = slice(None) if category is None else slice(category, category + 1)
        precision, recall = self.precision[chosen], self.recall[chosen]
        setup, last = SETUPS[self.kind], len(SETUPS[self.kind].most) - 1
        at_overlaps = {"": slice(None), "50": slice(1), "75": slice(5, 6)}
        sizes = list(enumerate(setup.sizes))[1:]
        named = {f"AP{name}": precision[:, 0, last, at] for name, at in at_overlaps.items()}
        named |= {f"AP_{size}": precision[:, number, last] for number, size in sizes}
        if self.kind == "keypoints":
            named |= {f"AR{name}": recall[:, 0, last, at] for name, at in at_overlaps.items()}
        else:
            named |= {f"AR_{most}": recall[:, 0, number] for number, most in enumerate(setup.most)}
        named |= {f"AR_{size}": recall[:, number, last] for number, size in sizes}
        defined = {name: values[~np.isnan(values)] for name, values in named.items()}
        return {name: float(values.mean()) if values.size else None for name, values in defined.items()}

    def precision_at_recalls(self, overlap: float | None, category: int | None = None) -> list[float] | None:
        """Best precision at recalls 0, 0.01, ... 1 or beyond, of one class or the mean over all.

        `overlap` None: the mean over all overlaps, whose own mean is AP. None without ground truth.
        """
        chosen = slice(None) if category is None else slice(category, category + 1)
        at = slice(None) if overlap is None else [int(np.argmin(abs(THRESHOLDS - overlap)))]
        curves = self.precision[chosen, 0, len(SETUPS[self.kind].most) - 1][:, at]
        known = curves[~np.isnan(curves).any(axis=(1, 2))]
        return known.mean(axis=(0, 1)).tolist() if len(known) else None


def measure_coco(truth: GroundTruth, found: Detections, kind: Kind = "boxes") -> CocoAccuracy:
    """Measure detections against ground truth by COCO's rules; objects marked difficult are ignored."""
    setup = SETUPS[kind]
    overlap, areas = _measure_overlaps(truth, found, kind)
    limits = np.array(list(setup.sizes.values()))
    ignored: Flags = (
        (truth.area < limits[:, :1]) | (truth.area > limits[:, 1:]) | truth.crowd | truth.difficult
    )
    if kind == "keypoints" and truth.keypoints is not None:
        ignored |= ~(truth.keypoints[:, :, 2] > 0).any(axis=1)
    dets = sort_detections(found, max(1, len(truth.image_ids)), max(setup.most))
    matches = match_detections(truth, dets, overlap, THRESHOLDS, ignored)
    # A detection that found nothing counts as wrong only in the range its own size belongs to.
    counted = (areas[dets.row] >= limits[:, :1]) & (areas[dets.row] <= limits[:, 1:])
    classes = len(truth.category_ids)
    shape = (classes, len(setup.sizes), len(setup.most), len(THRESHOLDS))
    precision, recall = np.full((*shape, len(RECALLS)), np.nan), np.full(shape, np.nan)
    # Objects to be found, [sizes, classes].
    objects = np.array([np.bincount(truth.category[~row], minlength=classes) for row in ignored], dtype=float)
    det_border = np.searchsorted(dets.category, np.arange(classes + 1))
    candidate_border = np.searchsorted(dets.category[matches.candidates], np.arange(classes + 1))
    for category in range(classes):
        curve = _ClassCurves(
            matches,
            counted,
            slice(det_border[category], det_border[category + 1]),
            slice(candidate_border[category], candidate_border[category + 1]),
        )
        for number, most in enumerate(setup.most):
            at = (category, slice(None), number)
            curve.fill_figures(precision[at], recall[at], objects[:, category], most)
    return CocoAccuracy(kind, precision, recall, matches)


def _measure_overlaps(truth: GroundTruth, found: Detections, kind: Kind) -> tuple[Overlap, Floats]:
    if kind == "masks":
        return compare_masks(truth, found), measure_mask_areas(found)
    if kind == "keypoints":
        return compare_keypoints(truth, found), measure_keypoint_areas(found)
    return compare_boxes(truth, found), found.boxes[:, 2] * found.boxes[:, 3]


def can_measure_keypoints(truth: GroundTruth) -> bool:
    """Whether COCO's similarity is defined for these points: it knows the 17 of a person."""
    return truth.keypoints is not None and truth.keypoints.shape[1] == KEYPOINT_COUNT


class _ClassCurves:
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

    def fill_figures(self, precision: Floats, recall: Floats, objects: Floats, most: int) -> None:
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

"""Right, wrong and missed: the score from which on detections are best believed, and the worst images.

Everything here is at an overlap of one half, by COCO's matching, all sizes together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detscope.accuracy.coco import CocoAccuracy
from detscope.accuracy.records import Flags, Floats, GroundTruth, Integers


@dataclass(frozen=True)
class ScoreThreshold:
    """The score that balances wrong and missed best: the largest F1 over all classes together."""

    score: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class ImageVerdict:
    """One image: what became of its detections, from the operating point on, and of its objects."""

    image: int  # position in the ground truth's `image_ids`
    right: Integers  # rows of detections
    wrong: Integers
    aside: Integers  # detections of what is to be ignored
    found: Integers  # rows of ground truth
    missed: Integers
    f1: float


@dataclass(frozen=True)
class _Verdicts:
    """All detections, as COCO's matching sees them."""

    row: Integers
    image: Integers
    scores: Floats
    thing: Integers  # the object each one found; -1: none
    right: Flags
    aside: Flags


def find_operating_point(accuracy: CocoAccuracy) -> ScoreThreshold | None:
    """The best score to cut at; None without ground truth or without a right detection."""
    judged, objects = _judge_detections(accuracy), int((~accuracy.matches.ignored_objects[0]).sum())
    if not objects or not judged.right.any():
        return None
    order = np.argsort(-judged.scores, kind="stable")
    scores = judged.scores[order]
    right = np.cumsum(judged.right[order])
    counted = np.cumsum(~judged.aside[order])
    last_of_score = np.append(scores[1:] != scores[:-1], True)
    f1 = np.where(last_of_score, 2 * right / (counted + objects), -1.0)
    best = int(np.argmax(f1))
    return ScoreThreshold(
        float(scores[best]), float(right[best] / counted[best]), float(right[best] / objects), float(f1[best])
    )


def find_worst_images(
    truth: GroundTruth, accuracy: CocoAccuracy, least_score: float, most: int
) -> list[ImageVerdict]:
    """Images with anything wrong or missed, lowest F1 first, of equal ones those with most errors."""
    judged = _judge_detections(accuracy)
    believed = judged.scores >= least_score
    wanted = ~accuracy.matches.ignored_objects[0]
    found = np.zeros(len(truth), dtype=np.bool_)
    found[judged.thing[believed & judged.right]] = True
    images = len(truth.image_ids)

    def count_per_image(of: Integers) -> Integers:
        return np.bincount(of, minlength=images)

    right = count_per_image(judged.image[believed & judged.right])
    wrong = count_per_image(judged.image[believed & ~judged.right & ~judged.aside])
    missed = count_per_image(truth.image[wanted & ~found])
    f1 = 2 * right / np.maximum(1, 2 * right + wrong + missed)
    bad = np.flatnonzero(wrong + missed)
    order = bad[np.lexsort((bad, -(wrong + missed)[bad], f1[bad]))][:most]
    return [
        _judge_image(int(image), truth, judged, believed, found, wanted, float(f1[image])) for image in order
    ]


def _judge_image(
    image: int,
    truth: GroundTruth,
    judged: _Verdicts,
    believed: Flags,
    found: Flags,
    wanted: Flags,
    f1: float,
) -> ImageVerdict:
    here, things = believed & (judged.image == image), truth.image == image
    return ImageVerdict(
        image,
        judged.row[here & judged.right],
        judged.row[here & ~judged.right & ~judged.aside],
        judged.row[here & judged.aside],
        np.flatnonzero(things & found),
        np.flatnonzero(things & wanted & ~found),
        f1,
    )


def _judge_detections(accuracy: CocoAccuracy) -> _Verdicts:
    matches = accuracy.matches
    thing = np.full(len(matches.dets.row), -1, dtype=np.int64)
    thing[matches.candidates] = matches.found[0, 0]
    hit = thing >= 0
    aside = np.zeros(len(thing), dtype=np.bool_)
    aside[hit] = matches.ignored_objects[0, thing[hit]]
    return _Verdicts(matches.dets.row, matches.dets.image, matches.dets.scores, thing, hit & ~aside, aside)

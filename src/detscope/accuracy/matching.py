"""How much detections and objects overlap, and which found which by COCO's rules, many at once.

COCO's rules: in every image and class the best detection chooses first. It takes the free object with the
largest overlap; of equal overlaps the later object; objects to be ignored only when no other is left. A
crowd may be chosen by many. pycocotools walks through images, ranges, thresholds, detections and objects
in Python. Here only pairs that overlap enough are kept, and one round lets the next detection of every
image and class choose, for all ranges and thresholds together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from detscope.accuracy.records import Detections, Flags, Floats, GroundTruth, Integers

# Called with rows of detections and rows of ground truth, pair by pair; gives their overlaps.
Overlap = Callable[[Integers, Integers], Floats]

# COCO's measure of how exactly people place each of the 17 points of a person.
_SPREAD = np.array([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]) / 1000.0
KEYPOINT_COUNT = len(_SPREAD)
_PAIRS_AT_ONCE = 2_000_000
_NEARLY_ONE = 1 - 1e-10


@dataclass(frozen=True)
class SortedDetections:
    """Detections class by class, image by image, best first; at most so many per image and class."""

    row: Integers  # [D] row in the given detections
    category: Integers
    image: Integers
    scores: Floats
    rank: Integers  # place in its image and class, from 0
    key: Integers  # of image and class


@dataclass(frozen=True)
class Matches:
    """What was found. Only detections that overlap something enough are listed: `candidates` of `dets`."""

    dets: SortedDetections
    candidates: Integers  # [C] places in `dets`
    found: npt.NDArray[np.int32]  # [ranges, thresholds, C] the object's row; -1: none
    ignored_objects: Flags  # [ranges, G] objects that count neither as found nor as missed


def sort_detections(found: Detections, images: int, most: int) -> SortedDetections:
    """Sort as pycocotools does; equal scores stay in the order they were given."""
    order = np.lexsort((-found.scores, found.image, found.category))
    key = found.category[order] * images + found.image[order]
    rank = _place_in_group(key)
    kept = rank < most
    order = order[kept]
    return SortedDetections(
        order, found.category[order], found.image[order], found.scores[order], rank[kept], key[kept]
    )


def match_detections(
    truth: GroundTruth,
    dets: SortedDetections,
    overlap: Overlap,
    thresholds: Floats,
    ignored_objects: Flags,
) -> Matches:
    """Let detections choose objects; `ignored_objects` has one row per area range."""
    limits = np.minimum(thresholds, _NEARLY_ONE)
    detection, thing, overlaps = _find_pairs(truth, dets, overlap, float(limits.min()))
    # Ascending overlap, then the object's place in the file: the last pair that can be taken is the best.
    order = np.lexsort((thing, overlaps, detection))
    detection, thing, overlaps = detection[order], thing[order], overlaps[order]
    candidates, candidate = np.unique(detection, return_inverse=True)
    shape = (len(ignored_objects), len(limits))
    found = np.full((*shape, len(candidates)), -1, dtype=np.int32)
    taken = np.zeros((*shape, len(truth)), dtype=np.bool_)
    round_of = _place_in_group(dets.key[candidates])[candidate]
    by_round = np.argsort(round_of, kind="stable")
    borders = np.searchsorted(round_of[by_round], np.arange(round_of.max(initial=-1) + 2))
    for begin, end in pairwise(borders.tolist()):
        pairs = by_round[begin:end]
        things, who = thing[pairs], candidate[pairs]
        free = ~taken[:, :, things] | truth.crowd[things]
        free &= overlaps[pairs] >= limits[:, None]
        _choose_objects(found, taken, free, things, who, ignored_objects)
    return Matches(dets, candidates, found, ignored_objects)


def _choose_objects(
    found: npt.NDArray[np.int32],
    taken: Flags,
    free: Flags,
    things: Integers,
    who: Integers,
    ignored_objects: Flags,
) -> None:
    """One round: every candidate in `who` takes the last free object of its pairs, wanted ones first."""
    count = len(things)
    wanted = ~ignored_objects[:, things]
    value = np.arange(count) + count * wanted[:, None, :]
    begins = np.flatnonzero(np.diff(who, prepend=-1))
    best = np.maximum.reduceat(np.where(free, value, -1), begins, axis=2)
    area_range, threshold, chooser = np.nonzero(best >= 0)
    chosen = things[best[area_range, threshold, chooser] % count]
    found[area_range, threshold, who[begins][chooser]] = chosen
    taken[area_range, threshold, chosen] = True


def _find_pairs(
    truth: GroundTruth, dets: SortedDetections, overlap: Overlap, least: float
) -> tuple[Integers, Integers, Floats]:
    """Detections and objects of the same image and class that overlap at least so much."""
    images = max(1, len(truth.image_ids))
    key = truth.category * images + truth.image
    order = np.argsort(key, kind="stable")
    first = np.searchsorted(key[order], dets.key, side="left")
    count = np.searchsorted(key[order], dets.key, side="right") - first
    kept = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))]
    for chosen in _split_portions(count):
        detection = np.repeat(chosen, count[chosen])
        ends = np.cumsum(count[chosen])
        within = np.arange(len(detection)) - np.repeat(ends - count[chosen], count[chosen])
        things = order[first[detection] + within]
        overlaps = overlap(dets.row[detection], things)
        enough = overlaps >= least
        kept.append((detection[enough], things[enough], overlaps[enough]))
    detections, objects, shares = zip(*kept, strict=True)
    return np.concatenate(detections), np.concatenate(objects), np.concatenate(shares)


def _split_portions(count: Integers) -> list[Integers]:
    """Detections that have objects to compare with, in portions whose pairs fit into memory."""
    some = np.flatnonzero(count)
    if not len(some):
        return []
    portion = np.cumsum(count[some]) // _PAIRS_AT_ONCE
    return np.split(some, np.flatnonzero(np.diff(portion)) + 1)


def _place_in_group(keys: Integers) -> Integers:
    """Place of each element among its neighbours with the same key."""
    begins = np.flatnonzero(np.diff(keys, prepend=-1))
    return np.arange(len(keys)) - np.repeat(begins, np.diff(begins, append=len(keys)))


def compare_boxes(truth: GroundTruth, found: Detections) -> Overlap:
    """Intersection over union of boxes; over the detection's own area where the object is a crowd."""

    def compare_pairs(rows: Integers, objects: Integers) -> Floats:
        return measure_box_overlaps(found.boxes[rows], truth.boxes[objects], truth.crowd[objects])

    return compare_pairs


def measure_box_overlaps(one: Floats, other: Floats, crowd: Flags) -> Floats:
    """Overlaps of boxes (x, y, width, height), row by row, in pycocotools' own order of operations."""
    wide = np.minimum(one[:, 0] + one[:, 2], other[:, 0] + other[:, 2]) - np.maximum(one[:, 0], other[:, 0])
    high = np.minimum(one[:, 1] + one[:, 3], other[:, 1] + other[:, 3]) - np.maximum(one[:, 1], other[:, 1])
    shared = np.maximum(wide, 0.0) * np.maximum(high, 0.0)
    own = one[:, 2] * one[:, 3]
    whole = np.where(crowd, own, own + other[:, 2] * other[:, 3] - shared)
    share: Floats = np.divide(shared, whole, out=np.zeros(len(shared)), where=(shared > 0) & (whole > 0))
    return share


def compare_masks(truth: GroundTruth, found: Detections) -> Overlap:
    """Intersection over union of masks; only pairs whose boxes touch are looked at pixel by pixel."""
    from pycocotools import mask as coco_mask

    if truth.masks is None or found.masks is None:
        raise ValueError("masks are needed on both sides")
    true_masks, found_masks = truth.masks, found.masks

    def compare_pairs(rows: Integers, objects: Integers) -> Floats:
        overlaps = np.zeros(len(rows))
        for begin, width, end in _find_blocks(rows, objects):
            things = objects[begin : begin + width].tolist()
            overlaps[begin:end] = coco_mask.iou(
                [found_masks[row] for row in rows[begin:end:width].tolist()],
                [true_masks[thing] for thing in things],
                truth.crowd[things].tolist(),
            ).ravel()
        return overlaps

    return compare_pairs


def _find_blocks(rows: Integers, objects: Integers) -> list[tuple[int, int, int]]:
    """Begin, objects and end of each run of detections that are compared with the same objects."""
    begins = np.flatnonzero(np.diff(rows, prepend=-1))
    widths = np.diff(begins, append=len(rows))
    first = np.flatnonzero(np.diff(objects[begins], prepend=-1))
    ends = np.append(begins[first][1:], len(rows))
    return list(zip(begins[first].tolist(), widths[first].tolist(), ends.tolist(), strict=True))


def measure_mask_areas(found: Detections) -> Floats:
    """Pixels of every detected mask."""
    from pycocotools import mask as coco_mask

    # One by one: for a list pycocotools keeps the number of masks in eight bits.
    return np.array([coco_mask.area(mask) for mask in found.masks or ()], dtype=np.float64)


def compare_keypoints(truth: GroundTruth, found: Detections) -> Overlap:
    """COCO's object keypoint similarity: how near the marked points are, for the object's size."""
    if truth.keypoints is None or found.keypoints is None:
        raise ValueError("keypoints are needed on both sides")
    true_points, found_points = truth.keypoints, found.keypoints

    def compare_pairs(rows: Integers, objects: Integers) -> Floats:
        marked = true_points[objects, :, 2] > 0
        anywhere = ~marked.any(axis=1)
        across, down = (found_points[rows, :, axis] - true_points[objects, :, axis] for axis in (0, 1))
        if anywhere.any():  # nothing is marked: points count that lie far outside of the object's box
            for axis, distance in enumerate((across, down)):
                points, box = found_points[rows[anywhere], :, axis], truth.boxes[objects[anywhere]]
                low = (box[:, axis] - box[:, 2 + axis])[:, None]
                high = (box[:, axis] + box[:, 2 + axis] * 2)[:, None]
                distance[anywhere] = np.maximum(0, low - points) + np.maximum(0, points - high)
            marked[anywhere] = True
        scale = (truth.area[objects] + np.spacing(1))[:, None]
        error = (across**2 + down**2) / (_SPREAD * 2) ** 2 / scale / 2
        near: Floats = np.where(marked, np.exp(-error), 0.0).sum(axis=1) / marked.sum(axis=1)
        return near

    return compare_pairs


def measure_keypoint_areas(found: Detections) -> Floats:
    """Area of the box around every detection's points."""
    points = found.keypoints
    if points is None or not len(points):
        return np.zeros(0)
    area: Floats = np.ptp(points[:, :, 0], axis=1) * np.ptp(points[:, :, 1], axis=1)
    return area

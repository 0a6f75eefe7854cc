"""How much a detection and an object overlap: boxes, masks, keypoints; for many pairs at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from detscope.accuracy.records import Detections, Flags, Floats, GroundTruth, Integers

# Called with rows of detections and rows of ground truth, pair by pair; gives their overlaps.
Overlap = Callable[[Integers, Integers], Floats]

# COCO's measure of how exactly people place each of the 17 points of a person.
_SPREAD = np.array([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]) / 1000.0
KEYPOINT_COUNT = len(_SPREAD)


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

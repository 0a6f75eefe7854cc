"""Ground truth and detections as arrays: what every measure of accuracy takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
RunLengths = dict[str, Any]  # COCO's compressed form: {"size": [height, width], "counts": bytes}


@dataclass(frozen=True)
class GroundTruth:
    """What is in the images: one row per object, in the order of the annotation file.

    `image` and `category` are positions in `image_ids` and `category_ids`, both ascending. Boxes are
    x, y, width, height, as the COCO format has them. `masks` and `keypoints` are None where not asked for.
    """

    image_ids: tuple[int, ...]
    category_ids: tuple[int, ...]
    category_names: tuple[str, ...]
    image: Integers  # [G]
    category: Integers  # [G]
    boxes: Floats  # [G, 4]
    area: Floats  # [G]; of the mask where the format gives it
    crowd: Flags  # [G]
    difficult: Flags  # [G]; VOC's flag: neither found nor missed counts
    masks: Sequence[RunLengths] | None = None
    keypoints: Floats | None = None  # [G, K, 3]

    def __len__(self) -> int:
        return len(self.image)


@dataclass(frozen=True)
class Detections:
    """What was found: one row per detection, as given; positions as in the ground truth."""

    image: Integers  # [D]
    category: Integers  # [D]
    boxes: Floats  # [D, 4] x, y, width, height
    scores: Floats  # [D]
    masks: Sequence[RunLengths] | None = None
    keypoints: Floats | None = None  # [D, K, 3]

    def __len__(self) -> int:
        return len(self.image)


def no_detections(*, masks: bool = False, keypoint_count: int | None = None) -> Detections:
    """An empty list of detections."""
    nothing = np.zeros(0, dtype=np.int64)
    return Detections(
        nothing,
        nothing,
        np.zeros((0, 4)),
        np.zeros(0),
        () if masks else None,
        None if keypoint_count is None else np.zeros((0, keypoint_count, 3)),
    )


def find_positions(values: Integers, known: Sequence[int]) -> Integers:
    """Where each value stands in the ascending `known`; -1 where it does not."""
    table = np.asarray(known, dtype=np.int64)
    if not len(table):
        return np.full(len(values), -1, dtype=np.int64)
    found = np.minimum(np.searchsorted(table, values), len(table) - 1)
    return np.where(table[found] == values, found, -1)

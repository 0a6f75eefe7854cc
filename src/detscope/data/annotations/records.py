"""What every annotation format is read into: one record per image, every object judged.

A box must be finite, have a size, and lie inside its image. Overhang of up to one pixel is how the
formats round and is cut off; anything more is a problem: `stop` raises, naming image and annotation,
`skip` drops the annotation (or cuts an overhanging box) and counts it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detscope.data.annotations.segmentation import Segmentation
from detscope.data.contract import Problem
from detscope.errors import InputError

ROUNDING_PIXELS = 1.0
HINT = "correct the annotations, or go on without such ones with --on-bad-data skip"

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class ImageRecord:
    """One image with its annotations; arrays have one row per object."""

    image_id: int
    file_name: str
    width: int | None
    height: int | None
    boxes: npt.NDArray[np.float64]  # [N, 4] xyxy
    labels: npt.NDArray[np.int64]  # [N] from 1
    areas: npt.NDArray[np.float64]  # [N]
    crowd: npt.NDArray[np.int64]  # [N] 0 or 1
    difficult: npt.NDArray[np.int64]  # [N] 0 or 1
    annotation_ids: tuple[int, ...]
    segmentations: tuple[Segmentation, ...] | None  # None: not asked for
    keypoints: npt.NDArray[np.float32] | None  # [N, K, 3]; None: not asked for


@dataclass(frozen=True)
class Annotations:
    """All annotations of a data set."""

    classes: tuple[str, ...]  # classes[0] is "background"
    category_ids: tuple[int, ...]  # the file's own id of classes[1], classes[2], ...
    images: tuple[ImageRecord, ...]
    problems: tuple[Problem, ...]
    keypoint_swap: tuple[int, ...] = ()  # which point a point becomes in the mirror
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReadOptions:
    """What is wanted of annotations."""

    need_masks: bool = False
    need_keypoints: bool = False
    keep_ignored: bool = False  # crowd and difficult objects in targets too; no detector trains on them
    skip_bad: bool = False
    limit: int | None = None  # images
    judge_masks: bool = False  # look at segmentations that are there, though nobody needs them
    inspect_images: bool = True  # look at every image file before anything is timed


@dataclass(frozen=True)
class FoundObject:
    """An object that was read and judged good."""

    box: Box
    label: int
    area: float
    annotation_id: int
    crowd: int = 0
    difficult: int = 0
    segmentation: Segmentation | None = None
    keypoints: npt.NDArray[np.float32] | None = None


class BadAnnotationError(Exception):
    """Why an annotation cannot be used; becomes a problem of its image."""


class Judge:
    """Judges boxes and remembers what was wrong."""

    def __init__(self, skip_bad: bool) -> None:
        self.problems: list[Problem] = []
        self._skip_bad = skip_bad

    def box(self, box: Box, width: int | None, height: int | None, image: str, annotation_id: int) -> Box:
        """The box inside its image; raises BadAnnotationError where nothing of it is left."""
        if not all(math.isfinite(value) for value in box):
            raise BadAnnotationError(f"box {list(box)} has values that are not finite")
        require_size(box, f"{box[2] - box[0]:g} x {box[3] - box[1]:g}")
        if width is None or height is None:
            return box
        x1, y1, x2, y2 = box
        overhang = max(-x1, -y1, x2 - width, y2 - height)
        if overhang <= 0:
            return box
        inside = (max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height)))
        require_size(inside, "no part of it is inside the image")
        if overhang > ROUNDING_PIXELS:
            reason = f"box reaches {overhang:g} pixels beyond the image ({width} x {height})"
            self.problem(image, annotation_id, reason, "clipped")
        return inside

    def problem(self, image: str, annotation_id: int | None, reason: str, action: str = "dropped") -> None:
        """Something that stops a run, unless such things are to be skipped."""
        if not self._skip_bad:
            where = "" if annotation_id is None else f", annotation {annotation_id}"
            raise InputError(f"image {image}{where}: {reason}", HINT)
        self.note(image, annotation_id, reason, action)

    def note(self, image: str, annotation_id: int | None, reason: str, action: str = "noted") -> None:
        """Something a person should see, and that stops nothing."""
        self.problems.append(Problem(image, annotation_id, reason, action))


def require_size(box: Box, what: str) -> None:
    """Refuse boxes without area, in the precision the detector sees: a sliver may vanish in float32."""
    if box[2] - box[0] > 0.5 and box[3] - box[1] > 0.5 and box[2] < 1e6 and box[3] < 1e6:
        return  # most boxes; a file may have a million of them
    x1, y1, x2, y2 = np.array(box, dtype=np.float32)
    if not (x2 > x1 and y2 > y1):
        raise BadAnnotationError(f"box has no positive width and height: {what}")


def make_record(
    image_id: int,
    file_name: str,
    size: tuple[int | None, int | None],
    objects: Sequence[FoundObject],
    *,
    with_masks: bool = False,
    keypoint_count: int | None = None,
) -> ImageRecord:
    """Put the objects of an image together; `keypoint_count` None: keypoints were not asked for."""
    masks = tuple(found.segmentation for found in objects if found.segmentation is not None)
    points = [found.keypoints for found in objects if found.keypoints is not None]
    return ImageRecord(
        image_id,
        file_name,
        *size,
        np.array([found.box for found in objects], dtype=np.float64).reshape(-1, 4),
        np.array([found.label for found in objects], dtype=np.int64),
        np.array([found.area for found in objects], dtype=np.float64),
        np.array([found.crowd for found in objects], dtype=np.int64),
        np.array([found.difficult for found in objects], dtype=np.int64),
        tuple(found.annotation_id for found in objects),
        masks if with_masks else None,
        None
        if keypoint_count is None
        else np.array(points, dtype=np.float32).reshape(len(points), keypoint_count, 3),
    )


def area_of(box: Box) -> float:
    """Width times height."""
    return (box[2] - box[0]) * (box[3] - box[1])

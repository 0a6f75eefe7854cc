"""COCO annotation files to one record per image, every annotation judged before anything is trained on.

A box must be finite, have a size, and lie inside its image. Overhang of up to one pixel is how the
format rounds and is cut off; anything more is a problem: `stop` raises, naming image and annotation,
`skip` drops the annotation (or cuts an overhanging box) and counts it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.data.contract import Problem
from detscope.data.segmentation import Segmentation, SegmentationError, parse_segmentation, require_size
from detscope.errors import InputError

ROUNDING_PIXELS = 1.0
_HINT = 'correct the annotation file, or go on without such annotations with data.on_bad_data = "skip"'


@dataclass(frozen=True)
class ImageRecord:
    """One image with its annotations; arrays have one row per object."""

    image_id: int
    file_name: str
    width: int | None
    height: int | None
    boxes: npt.NDArray[np.float32]  # [N, 4] xyxy
    labels: npt.NDArray[np.int64]  # [N] from 1
    areas: npt.NDArray[np.float32]  # [N]
    crowd: npt.NDArray[np.int64]  # [N] 0 or 1
    annotation_ids: tuple[int, ...]
    segmentations: tuple[Segmentation, ...] | None  # None: not asked for
    keypoints: npt.NDArray[np.float32] | None  # [N, K, 3]; None: not asked for


@dataclass(frozen=True)
class Annotations:
    """A whole annotation file."""

    classes: tuple[str, ...]  # classes[0] is "background"
    category_ids: tuple[int, ...]  # the file's own id of classes[1], classes[2], ...
    images: tuple[ImageRecord, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class ReadOptions:
    """What is wanted of an annotation file."""

    need_masks: bool = False
    need_keypoints: bool = False
    keep_crowd: bool = False  # crowd regions are for evaluation; a detector is not trained on them
    skip_bad: bool = False
    limit: int | None = None  # images


@dataclass(frozen=True)
class _Object:
    box: tuple[float, float, float, float]
    label: int
    area: float
    crowd: int
    annotation_id: int
    segmentation: Segmentation | None
    keypoints: npt.NDArray[np.float32] | None


class _BadAnnotation(Exception):
    pass


SizeOf = Callable[[str], tuple[int | None, int | None]]


def _size_not_known(_file_name: str) -> tuple[int | None, int | None]:
    return None, None


def read_annotations(path: Path, options: ReadOptions, size_of: SizeOf = _size_not_known) -> Annotations:
    """Read and judge a COCO annotation file (`instances_*.json`, `person_keypoints_*.json`).

    `size_of` tells (width, height) of an image where the file does not.
    """
    content = _load_json(path)
    images, annotations, categories = (_list_of(content, key, path) for key in _KEYS)
    try:
        ids = sorted({int(category["id"]): str(category["name"]) for category in categories}.items())
        chosen = sorted(images, key=lambda image: int(image["id"]))[: options.limit]
        by_image: dict[int, list[dict[str, Any]]] = {int(image["id"]): [] for image in chosen}
        for annotation in annotations:
            if (of_image := by_image.get(int(annotation["image_id"]))) is not None:
                of_image.append(annotation)
        labels = {category_id: label for label, (category_id, _) in enumerate(ids, start=1)}
        reader = _Reader(labels, _keypoint_count(categories), options, size_of)
        records = tuple(reader.image(image, by_image[int(image["id"])]) for image in chosen)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not in COCO layout: {type(error).__name__} {error}", _HINT) from error
    if len(by_image) != len(chosen):
        raise InputError(f"{path}: two images have the same id", _HINT)
    names = ("background", *(name for _, name in ids))
    return Annotations(names, tuple(number for number, _ in ids), records, tuple(reader.problems))


_KEYS = ("images", "annotations", "categories")


def _load_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {str(error).partition(chr(10))[0]}") from error


def _list_of(content: Any, key: str, path: Path) -> list[dict[str, Any]]:
    value = content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(value, list):
        raise InputError(f"{path}: not in COCO layout: {key!r} is missing or not a list", _HINT)
    return value


def _keypoint_count(categories: list[dict[str, Any]]) -> int:
    return max((len(category.get("keypoints", ())) for category in categories), default=0)


class _Reader:
    """Turns annotations into objects and remembers what was wrong with them."""

    def __init__(
        self, labels: dict[int, int], keypoint_count: int, options: ReadOptions, size_of: SizeOf
    ) -> None:
        self.problems: list[Problem] = []
        self._labels = labels
        self._keypoint_count = keypoint_count
        self._options = options
        self._size_of = size_of

    def image(self, image: dict[str, Any], annotations: list[dict[str, Any]]) -> ImageRecord:
        name = str(image["file_name"])
        width, height = _optional_int(image.get("width")), _optional_int(image.get("height"))
        if width is None or height is None:
            width, height = self._size_of(name)
        objects = []
        for annotation in annotations:
            try:
                found = self._object(annotation, width, height, name)
            except (_BadAnnotation, SegmentationError) as error:
                self._problem(name, int(annotation["id"]), str(error), "dropped")
            else:
                if found.crowd == 0 or self._options.keep_crowd:
                    objects.append(found)
        return self._record(int(image["id"]), name, width, height, objects)

    def _object(
        self, annotation: dict[str, Any], width: int | None, height: int | None, name: str
    ) -> _Object:
        annotation_id = int(annotation["id"])
        category = int(annotation["category_id"])
        if category not in self._labels:
            raise _BadAnnotation(f"unknown category {category}")
        box = _corners(annotation.get("bbox"))
        if width is not None and height is not None:
            box, overhang = _clipped(box, width, height)
            if overhang > ROUNDING_PIXELS:
                reason = f"box reaches {overhang:g} pixels beyond the image ({width} x {height})"
                self._problem(name, annotation_id, reason, "clipped")
        crowd = int(annotation.get("iscrowd", 0))
        area = annotation.get("area")
        segmentation = parse_segmentation(annotation.get("segmentation")) if self._wants_mask(crowd) else None
        if segmentation is not None and width is not None and height is not None:
            require_size(segmentation, height, width)
        return _Object(
            box,
            self._labels[category],
            (box[2] - box[0]) * (box[3] - box[1]) if area is None else float(area),
            crowd,
            annotation_id,
            segmentation,
            self._keypoints(annotation) if self._options.need_keypoints else None,
        )

    def _wants_mask(self, crowd: int) -> bool:
        return self._options.need_masks and (crowd == 0 or self._options.keep_crowd)

    def _keypoints(self, annotation: dict[str, Any]) -> npt.NDArray[np.float32]:
        given = annotation.get("keypoints")
        if given is None:  # nobody marked any: all are "not labelled"
            return np.zeros((self._keypoint_count, 3), dtype=np.float32)
        points = np.asarray(given, dtype=np.float32)
        if points.shape != (3 * self._keypoint_count,) or not np.isfinite(points).all():
            raise _BadAnnotation(f"keypoints are not {self._keypoint_count} finite triples")
        return points.reshape(self._keypoint_count, 3)

    def _record(
        self, image_id: int, name: str, width: int | None, height: int | None, objects: list[_Object]
    ) -> ImageRecord:
        masks = tuple(found.segmentation for found in objects if found.segmentation is not None)
        points = [found.keypoints for found in objects if found.keypoints is not None]
        return ImageRecord(
            image_id,
            name,
            width,
            height,
            np.array([found.box for found in objects], dtype=np.float32).reshape(-1, 4),
            np.array([found.label for found in objects], dtype=np.int64),
            np.array([found.area for found in objects], dtype=np.float32),
            np.array([found.crowd for found in objects], dtype=np.int64),
            tuple(found.annotation_id for found in objects),
            masks if self._options.need_masks else None,
            np.array(points, dtype=np.float32).reshape(len(points), self._keypoint_count, 3)
            if self._options.need_keypoints
            else None,
        )

    def _problem(self, image: str, annotation_id: int, reason: str, action: str) -> None:
        if not self._options.skip_bad:
            raise InputError(f"image {image}, annotation {annotation_id}: {reason}", _HINT)
        self.problems.append(Problem(image, annotation_id, reason, action))


def _corners(bbox: Any) -> tuple[float, float, float, float]:
    if not isinstance(bbox, list | tuple) or len(bbox) != 4:
        raise _BadAnnotation("box is not a list of four numbers")
    x, y, width, height = (float(value) for value in bbox)
    if not all(math.isfinite(value) for value in (x, y, width, height)):
        raise _BadAnnotation(f"box {bbox} has values that are not finite")
    return _positive((x, y, x + width, y + height), f"{width:g} x {height:g}")


def _clipped(
    box: tuple[float, float, float, float], width: int, height: int
) -> tuple[tuple[float, float, float, float], float]:
    x1, y1, x2, y2 = box
    overhang = max(-x1, -y1, x2 - width, y2 - height)
    inside = (max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height)))
    return _positive(inside, "no part of it is inside the image"), overhang


def _positive(box: tuple[float, float, float, float], what: str) -> tuple[float, float, float, float]:
    # Judged in the precision the detector sees: a sliver may vanish in float32.
    x1, y1, x2, y2 = np.array(box, dtype=np.float32)
    if not (x2 > x1 and y2 > y1):
        raise _BadAnnotation(f"box has no positive width and height: {what}")
    return box


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)

"""COCO annotation files (`instances_*.json`, `person_keypoints_*.json`) to one record per image."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.data.records import (
    HINT,
    Annotations,
    BadAnnotationError,
    Box,
    FoundObject,
    ImageRecord,
    Judge,
    ReadOptions,
    area_of,
    make_record,
)
from detscope.data.segmentation import Segmentation, SegmentationError, parse_segmentation, require_size
from detscope.errors import InputError

__all__ = ["Annotations", "ImageRecord", "ReadOptions", "read_annotations"]

SizeOf = Callable[[str], tuple[int | None, int | None]]
Wanted = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
_KEYS = ("images", "annotations", "categories")


def _size_not_known(_file_name: str) -> tuple[int | None, int | None]:
    return None, None


def _all(images: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return images


def read_annotations(
    path: Path,
    options: ReadOptions,
    size_of: SizeOf = _size_not_known,
    *,
    wanted: Wanted = _all,
    content: Any = None,
) -> Annotations:
    """Read and judge a COCO annotation file.

    `size_of` tells (width, height) of an image where the file does not; `wanted` picks the images;
    `content` is the file where it was loaded before.
    """
    content = load_json(path) if content is None else content
    images, annotations, categories = (_list_of(content, key, path) for key in _KEYS)
    judge = Judge(options.skip_bad)
    try:
        ids = sorted({int(category["id"]): str(category["name"]) for category in categories}.items())
        known = _unique_images(images, judge)
        chosen = sorted(wanted(known), key=lambda image: int(image["id"]))[: options.limit]
        by_image = _by_image(annotations, {int(image["id"]) for image in chosen})
        _note_strays(annotations, known, judge)
        labels = {category_id: label for label, (category_id, _) in enumerate(ids, start=1)}
        points = _point_names(categories)
        reader = _Reader(labels, len(points), options, size_of, judge)
        records = tuple(reader.image(image, by_image[int(image["id"])]) for image in chosen)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not in COCO layout: {type(error).__name__} {error}", HINT) from error
    names = ("background", *(name for _, name in ids))
    return Annotations(
        names, tuple(number for number, _ in ids), records, tuple(judge.problems), mirrored_points(points)
    )


def load_json(path: Path) -> Any:
    """The content of a JSON file; NaN and infinity are let through, to be found where they stand."""
    import msgspec

    try:
        raw = path.read_bytes()
        try:
            return msgspec.json.decode(raw)  # three times faster than json; knows no NaN
        except msgspec.DecodeError:
            return json.loads(raw)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {str(error).partition(chr(10))[0]}") from error


def mirrored_points(names: list[str]) -> tuple[int, ...]:
    """For every keypoint the one that stands in its place in the mirror: left_eye and right_eye swap."""
    places = {name: place for place, name in enumerate(names)}

    def other(name: str) -> str:
        for one, two in (("left", "right"), ("right", "left")):
            if one in name:
                return name.replace(one, two)
        return name

    return tuple(places.get(other(name), place) for place, name in enumerate(names))


def _list_of(content: Any, key: str, path: Path) -> list[dict[str, Any]]:
    value = content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(value, list):
        raise InputError(f"{path}: not in COCO layout: {key!r} is missing or not a list", HINT)
    return value


def _unique_images(images: list[dict[str, Any]], judge: Judge) -> list[dict[str, Any]]:
    kept: dict[int, dict[str, Any]] = {}
    for image in images:
        number = int(image["id"])
        if number in kept:
            first = kept[number]["file_name"]
            judge.problem(str(image["file_name"]), None, f"has the same id {number} as image {first}")
        else:
            kept[number] = image
    return list(kept.values())


def _by_image(annotations: list[dict[str, Any]], ids: set[int]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {number: [] for number in ids}
    for annotation in annotations:
        if (of_image := found.get(int(annotation["image_id"]))) is not None:
            of_image.append(annotation)
    return found


def _note_strays(
    annotations: list[dict[str, Any]], images: list[dict[str, Any]], judge: Judge, most: int = 100
) -> None:
    """Annotations of no image, and ids that are used twice: harmless to a training, not to other tools."""
    ids = {int(image["id"]) for image in images}
    for annotation in annotations:
        if int(annotation["image_id"]) not in ids:
            number = annotation["image_id"]
            judge.note("(no image)", int(annotation["id"]), f"belongs to image {number}, which is not there")
            most -= 1
        if most <= 0:
            return
    counted = Counter(int(annotation["id"]) for annotation in annotations)
    for number, times in counted.items():
        if times > 1 and most > 0:
            judge.note("(several images)", number, f"the id of {times} annotations")
            most -= 1


def _point_names(categories: list[dict[str, Any]]) -> list[str]:
    """The keypoints of the category that has most of them."""
    return max((list(category.get("keypoints") or ()) for category in categories), key=len, default=[])


class _Reader:
    """Turns annotations into objects and remembers what was wrong with them."""

    def __init__(
        self,
        labels: dict[int, int],
        keypoint_count: int,
        options: ReadOptions,
        size_of: SizeOf,
        judge: Judge,
    ) -> None:
        self._labels = labels
        self._keypoint_count = keypoint_count
        self._options = options
        self._size_of = size_of
        self._judge = judge

    def image(self, image: dict[str, Any], annotations: list[dict[str, Any]]) -> ImageRecord:
        name = str(image["file_name"])
        width, height = _optional_int(image.get("width")), _optional_int(image.get("height"))
        if width is None or height is None:
            width, height = self._size_of(name)
        objects = []
        for annotation in annotations:
            try:
                objects.append(self._object(annotation, width, height, name))
            except (BadAnnotationError, SegmentationError) as error:
                self._judge.problem(name, int(annotation["id"]), str(error))
        return make_record(
            int(image["id"]),
            name,
            (width, height),
            objects,
            with_masks=self._options.need_masks,
            keypoint_count=self._keypoint_count if self._options.need_keypoints else None,
        )

    def _object(
        self, annotation: dict[str, Any], width: int | None, height: int | None, name: str
    ) -> FoundObject:
        annotation_id = int(annotation["id"])
        category = int(annotation["category_id"])
        if category not in self._labels:
            raise BadAnnotationError(f"unknown category {category}")
        box = self._judge.box(_corners(annotation.get("bbox")), width, height, name, annotation_id)
        area = annotation.get("area")
        return FoundObject(
            box,
            self._labels[category],
            area_of(box) if area is None else float(area),
            annotation_id,
            crowd=int(bool(annotation.get("iscrowd", 0))),
            segmentation=self._segmentation(annotation, width, height),
            keypoints=self._keypoints(annotation) if self._options.need_keypoints else None,
        )

    def _segmentation(
        self, annotation: dict[str, Any], width: int | None, height: int | None
    ) -> Segmentation | None:
        given = annotation.get("segmentation")
        if not (self._options.need_masks or (self._options.judge_masks and given)):
            return None
        segmentation = parse_segmentation(given)
        if width is not None and height is not None:
            require_size(segmentation, height, width)
        return segmentation

    def _keypoints(self, annotation: dict[str, Any]) -> npt.NDArray[np.float32]:
        given = annotation.get("keypoints")
        if given is None:  # nobody marked any: all are "not labelled"
            return np.zeros((self._keypoint_count, 3), dtype=np.float32)
        points = np.asarray(given, dtype=np.float32)
        if points.shape != (3 * self._keypoint_count,) or not np.isfinite(points).all():
            raise BadAnnotationError(f"keypoints are not {self._keypoint_count} finite triples")
        return points.reshape(self._keypoint_count, 3)


def _corners(bbox: Any) -> Box:
    if not isinstance(bbox, list | tuple) or len(bbox) != 4:
        raise BadAnnotationError("box is not a list of four numbers")
    x, y, width, height = (float(value) for value in bbox)
    return x, y, x + width, y + height


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)

"""COCO annotation files (`instances_*.json`, `person_keypoints_*.json`) to one record per image."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.data.annotations.records import (
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
from detscope.data.annotations.segmentation import (
    Segmentation,
    SegmentationError,
    parse_segmentation,
    require_size,
)
from detscope.data.annotations.values import LARGEST_SIDE, finite_number, require_name, shown, whole_number
from detscope.errors import InputError
from detscope.limits import require_within

__all__ = ["Annotations", "ImageRecord", "ReadOptions", "read_annotations"]

SizeOf = Callable[[str], tuple[int | None, int | None]]
Wanted = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
_KEYS = ("images", "annotations", "categories")
_MOST_BYTES_READ_SLOWLY = 64 * 2**20  # json's decoder is deaf to Ctrl-C for a second or two of it
_MOST_POINTS = 1000  # keypoints of one object


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
    leads_out: Callable[[str], bool] = lambda _name: False,
) -> Annotations:
    """Read and judge a COCO annotation file.

    `size_of` tells (width, height) of an image where the file does not; `wanted` picks the images;
    `content` is the file where it was loaded before; `leads_out` tells names that leave the data set.
    """
    content = load_json(path) if content is None else content
    images, annotations, categories = (_list_of(content, key, path) for key in _KEYS)
    judge = Judge(options.skip_bad)
    require_within("classes", len(categories), f"{path}")
    try:
        ids = sorted(_classes(categories, judge).items())
        known = _usable_images(images, judge, leads_out)
        chosen = sorted(wanted(known), key=lambda image: whole_number(image["id"]))[: options.limit]
        by_image = _by_image(annotations, {whole_number(image["id"]) for image in chosen}, path)
        _note_strays(annotations, known, judge)
        labels = {category_id: label for label, (category_id, _) in enumerate(ids, start=1)}
        points = _point_names(categories)
        reader = _Reader(labels, len(points), options, size_of, judge)
        records = tuple(reader.image(image, by_image[whole_number(image["id"])]) for image in chosen)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"{type(error).__name__} {error!s:.100}"
        raise InputError(f"{path}: not in COCO layout: {what}", HINT) from error
    names = ("background", *(name for _, name in ids))
    return Annotations(
        names, tuple(number for number, _ in ids), records, tuple(judge.problems), mirrored_points(points)
    )


def load_json(path: Path) -> Any:
    """The content of a JSON file; NaN and infinity are let through, to be found where they stand."""
    import msgspec

    try:
        require_within("annotation_bytes", path.stat().st_size, f"{path}")
        raw = path.read_bytes()
        try:
            return msgspec.json.decode(raw)  # three times faster than json; knows no NaN
        except msgspec.DecodeError:
            if len(raw) > _MOST_BYTES_READ_SLOWLY:
                raise
            return json.loads(raw)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
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


def _classes(categories: list[dict[str, Any]], judge: Judge) -> dict[int, str]:
    """Names by id; an id of two classes would give one of them the other's objects."""
    found: dict[int, str] = {}
    for category in categories:
        try:
            number, name = whole_number(category["id"]), require_name(category["name"])
        except ValueError as error:
            judge.problem("(categories)", None, f"a category cannot be used: {error}")
            continue
        if number in found:
            reason = f"categories {found[number][:60]!r} and {name[:60]!r} have the same id {number}"
            judge.problem("(categories)", None, reason)
        else:
            found[number] = name
    return found


def _usable_images(
    images: list[dict[str, Any]], judge: Judge, leads_out: Callable[[str], bool]
) -> list[dict[str, Any]]:
    """Images with an id of their own and the name of a file of the data set."""
    kept: dict[int, dict[str, Any]] = {}
    for image in images:
        try:
            name, number = require_name(image["file_name"]), whole_number(image["id"])
            if leads_out(name):
                raise ValueError("the file name leads out of the data set")
            if number in kept:
                raise ValueError(f"has the same id {number} as image {kept[number]['file_name']}")
        except ValueError as error:
            judge.problem(shown(image["file_name"]).strip("'\""), None, str(error))
        else:
            kept[number] = image
    return list(kept.values())


def _by_image(
    annotations: list[dict[str, Any]], ids: set[int], path: Path
) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {number: [] for number in ids}
    for annotation in annotations:
        if (of_image := found.get(_number_or_none(annotation["image_id"]))) is not None:
            of_image.append(annotation)
    fullest = max(found, key=lambda number: len(found[number]), default=None)
    if fullest is not None:
        require_within("image_objects", len(found[fullest]), f"{path}, image {fullest}")
    return found


def _number_or_none(value: Any) -> Any:
    if type(value) is int:  # nearly always; there may be a million
        return value
    try:
        return whole_number(value)
    except ValueError:
        return None


def _note_strays(
    annotations: list[dict[str, Any]], images: list[dict[str, Any]], judge: Judge, most: int = 100
) -> None:
    """Annotations of no image, and ids that are used twice: harmless to a training, not to other tools."""
    ids = {whole_number(image["id"]) for image in images}
    for annotation in annotations:
        if _number_or_none(annotation["image_id"]) not in ids:
            number = _number_or_none(annotation["id"])
            reason = f"belongs to image {shown(annotation['image_id'])}, which is not there"
            judge.note("(no image)", number, reason)
            most -= 1
        if most <= 0:
            return
    counted = Counter(_number_or_none(annotation["id"]) for annotation in annotations)
    for number, times in counted.items():
        if number is not None and times > 1 and most > 0:
            judge.note("(several images)", number, f"the id of {times} annotations")
            most -= 1


def _point_names(categories: list[dict[str, Any]]) -> list[str]:
    """The keypoints of the category that has most of them."""
    names = max((list(category.get("keypoints") or ()) for category in categories), key=len, default=[])
    if len(names) > _MOST_POINTS or not all(isinstance(name, str) for name in names):
        raise ValueError(f"keypoints are not at most {_MOST_POINTS} names")
    return names


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
        width, height = (self._side(image.get(key), key, name) for key in ("width", "height"))
        if width is None or height is None:
            width, height = self._size_of(name)
        objects = []
        for annotation in annotations:
            try:
                objects.append(self._object(annotation, width, height, name))
            except (BadAnnotationError, SegmentationError) as error:
                self._judge.problem(name, _number_or_none(annotation["id"]), str(error))
        return make_record(
            whole_number(image["id"]),
            name,
            (width, height),
            objects,
            with_masks=self._options.need_masks,
            keypoint_count=self._keypoint_count if self._options.need_keypoints else None,
        )

    def _side(self, value: Any, key: str, name: str) -> int | None:
        """A side of the image; where the file has nonsense, the image itself is asked."""
        try:
            side = None if value is None else whole_number(value)
        except ValueError:
            side = 0
        if side is not None and not 0 < side <= LARGEST_SIDE:
            self._judge.problem(name, None, f"its {key} is {shown(value)}, which no image has", "noted")
            return None
        return side

    def _object(
        self, annotation: dict[str, Any], width: int | None, height: int | None, name: str
    ) -> FoundObject:
        annotation_id = _number_or_none(annotation["id"])
        if annotation_id is None or abs(annotation_id) >= 2**62:
            raise BadAnnotationError(f"its id {shown(annotation['id'])} is not a whole number")
        category = _number_or_none(annotation["category_id"])
        if category not in self._labels:
            raise BadAnnotationError(f"unknown category {shown(annotation['category_id'])}")
        box = self._judge.box(_corners(annotation.get("bbox")), width, height, name, annotation_id)
        area = annotation.get("area")
        try:
            area = area_of(box) if area is None else finite_number(area)
        except ValueError as error:
            raise BadAnnotationError(f"area {error}") from None
        if not math.isfinite(area):
            raise BadAnnotationError("area is not finite")
        return FoundObject(
            box,
            self._labels[category],
            area,
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
        try:
            points = np.asarray(given, dtype=np.float32)
        except (TypeError, ValueError, OverflowError):
            raise BadAnnotationError("keypoints are not numbers") from None
        if points.shape != (3 * self._keypoint_count,) or not np.isfinite(points).all():
            raise BadAnnotationError(f"keypoints are not {self._keypoint_count} finite triples")
        return points.reshape(self._keypoint_count, 3)


def _corners(bbox: Any) -> Box:
    if not isinstance(bbox, list | tuple) or len(bbox) != 4:
        raise BadAnnotationError("box is not a list of four numbers")
    try:
        x, y, width, height = map(finite_number, bbox)
    except ValueError as error:
        raise BadAnnotationError(f"box: {error}") from None
    return x, y, x + width, y + height

"""Folders with YOLO text labels: one line per object, `class x y width height` in shares of the image.

A line with more numbers is a polygon. Which images belong to which split is told by `data.yaml`, or by
folders named train and val; class names by `data.yaml` or `classes.txt`. An image without a label file
has no objects.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from detscope.data.annotations.records import (
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
from detscope.data.annotations.segmentation import Segmentation
from detscope.data.contract import Progress
from detscope.data.dataset import CocoLayoutDataset, size_of_file, with_annotations
from detscope.data.registry import OpenRequest
from detscope.data.yolo_files import YoloFolder, label_file, read_yolo_folder
from detscope.errors import InputError, UsageError
from detscope.limits import require_within


@dataclass(frozen=True)
class _Line:
    number: int  # of the line in its file, from 1
    words: tuple[str, ...]


def open_yolo_folder(folder: Path, request: OpenRequest, name: str) -> CocoLayoutDataset:
    """Open a folder with YOLO text labels."""
    if request.need_keypoints:
        raise UsageError(f"data set {name} has no keypoints, which this model needs")
    found = read_yolo_folder(folder, request.split, request.settings.held_out)
    options = replace(request.read_options(), limit=request.settings.images)
    judge = Judge(options.skip_bad)
    images = found.images[: options.limit]
    lines = {image: _lines(label_file(image), judge, found.relative(image)) for image in images}
    classes = found.classes or _numbered(folder, found, lines, judge)
    records = _records(found, images, lines, len(classes), judge, options, request.progress)
    annotations = Annotations(
        ("background", *classes),
        tuple(range(len(classes))),
        records,
        tuple(judge.problems),
        notes=found.notes,
    )
    return with_annotations(
        name,
        found.base,
        annotations,
        options,
        progress=request.progress,
        augmentation=request.augmentation(),
    )


def _records(
    found: YoloFolder,
    images: Sequence[Path],
    lines: dict[Path, list[_Line]],
    class_count: int,
    judge: Judge,
    options: ReadOptions,
    progress: Progress | None,
) -> tuple[ImageRecord, ...]:
    records = []
    for number, image in enumerate(images, start=1):
        records.append(
            _record(number, found.relative(image), image, lines[image], class_count, judge, options)
        )
        if progress is not None and (number % 16 == 0 or number == len(images)):
            progress("reading labels", number, len(images))
    return tuple(records)


def _lines(path: Path, judge: Judge, image: str) -> list[_Line]:
    if not path.is_file():
        return []
    try:
        require_within("label_bytes", path.stat().st_size, "is too large")
        lines = path.read_text(encoding="utf-8").splitlines()
        require_within("image_objects", len(lines), "is too long")
    except (OSError, UnicodeDecodeError, InputError) as error:
        reason = error.message if isinstance(error, InputError) else "cannot be read as text"
        judge.problem(image, None, f"label file {path.name} {reason}", "noted")
        return []
    rows = ((number, tuple(line.split())) for number, line in enumerate(lines, start=1))
    return [_Line(number, words) for number, words in rows if words]


def _numbered(
    folder: Path, found: YoloFolder, lines: dict[Path, list[_Line]], judge: Judge
) -> tuple[str, ...]:
    """Without names, classes are called by their numbers; labels of both splits tell how many there are."""
    highest = -1
    others = (_lines(label_file(image), judge, found.relative(image)) for image in found.others)
    for rows in (*lines.values(), *others):
        words = (row.words[0] for row in rows)
        highest = max([highest, *(int(word) for word in words if word.isascii() and word.isdecimal())])
    if highest < 0:
        raise InputError(f"{folder}: no labels and no class names found", "add a data.yaml or classes.txt")
    require_within("classes", highest + 1, f"{folder}")
    return tuple(f"class {number}" for number in range(highest + 1))


def _record(
    number: int,
    name: str,
    image: Path,
    lines: Sequence[_Line],
    class_count: int,
    judge: Judge,
    options: ReadOptions,
) -> ImageRecord:
    width, height = size_of_file(image)
    if width is None or height is None:  # an image that cannot be read is judged when images are
        return make_record(number, name, (None, None), (), with_masks=options.need_masks)
    objects = []
    for line in lines:
        try:
            objects.append(_object(line, name, (width, height), class_count, judge, options.need_masks))
        except BadAnnotationError as error:
            judge.problem(name, line.number, str(error))
    return make_record(number, name, (width, height), objects, with_masks=options.need_masks)


def _object(
    line: _Line, image: str, size: tuple[int, int], class_count: int, judge: Judge, need_masks: bool
) -> FoundObject:
    kind, shares = _numbers(line)
    if not 0 <= kind < class_count:
        raise BadAnnotationError(f"unknown class {kind}")
    points = None if len(shares) == 4 else np.array(shares) * np.tile(np.array(size), len(shares) // 2)
    given = _box_of(shares, size) if points is None else _box_around(points)
    box = judge.box(given, *size, image, line.number)
    if need_masks and points is None:
        raise BadAnnotationError("has no polygon, which this model needs")
    mask = Segmentation(polygons=(points,)) if need_masks and points is not None else None
    return FoundObject(box, kind + 1, area_of(box), line.number, segmentation=mask)


def _numbers(line: _Line) -> tuple[int, list[float]]:
    try:
        kind, shares = int(line.words[0]), [float(word) for word in line.words[1:]]
    except ValueError:
        raise BadAnnotationError("line is not a class and numbers") from None
    if len(shares) != 4 and (len(shares) < 6 or len(shares) % 2):
        raise BadAnnotationError(f"line has {len(shares)} numbers after the class, not 4 or pairs")
    if not all(math.isfinite(share) for share in shares):
        raise BadAnnotationError("box has values that are not finite")
    return kind, shares


def _box_of(shares: Sequence[float], size: tuple[int, int]) -> Box:
    x, y, width, height = (share * size[axis % 2] for axis, share in enumerate(shares))
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _box_around(points: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Box:
    x, y = points[0::2], points[1::2]
    return float(x.min()), float(y.min()), float(x.max()), float(y.max())

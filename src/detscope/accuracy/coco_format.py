"""COCO's own formats to arrays and back: annotation content, results lists.

Forgiving where pycocotools raises: a missing `iscrowd` is 0, a missing `area` that of the box, an empty
results list is no detections.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from detscope.accuracy.records import Detections, Floats, GroundTruth, Integers, RunLengths, find_positions
from detscope.errors import InputError
from detscope.limits import read_within_limit
from detscope.run_lengths import unpack_run_lengths

ResultRow = dict[str, Any]
_MOST_PIXELS = 2**31
_HINT = "expected COCO results: a JSON list of {image_id, category_id, bbox: [x, y, width, height], score}"


@dataclass(frozen=True)
class ImportedResults:
    """Detections of a results file, and how many of its rows were left out, by reason."""

    detections: Detections
    left_out: dict[str, int]


def import_truth(content: Mapping[str, Any], *, masks: bool = False, keypoints: bool = False) -> GroundTruth:
    """Ground truth from the content of an annotation file."""
    image_ids = sorted({int(image["id"]) for image in content["images"]})
    names = dict(sorted((int(item["id"]), str(item["name"])) for item in content["categories"]))
    sizes = {int(image["id"]): (image.get("height"), image.get("width")) for image in content["images"]}
    image = find_positions(_read_column(content["annotations"], "image_id"), image_ids)
    category = find_positions(_read_column(content["annotations"], "category_id"), list(names))
    known = (image >= 0) & (category >= 0)
    things = [thing for thing, good in zip(content["annotations"], known, strict=True) if good]
    boxes = np.array([thing["bbox"] for thing in things], dtype=np.float64).reshape(-1, 4)
    areas = [thing.get("area") for thing in things]
    own_areas = boxes[:, 2] * boxes[:, 3]
    return GroundTruth(
        tuple(image_ids),
        tuple(names),
        tuple(names.values()),
        image[known],
        category[known],
        boxes,
        np.array([own if area is None else area for area, own in zip(areas, own_areas, strict=True)], float),
        np.array([bool(thing.get("iscrowd", 0)) for thing in things], dtype=np.bool_),
        np.array([bool(thing.get("difficult", 0)) for thing in things], dtype=np.bool_),
        [pack_run_lengths(thing["segmentation"], *sizes[int(thing["image_id"])]) for thing in things]
        if masks
        else None,
        _read_points(things) if keypoints else None,
    )


def load_results(path: Path) -> list[Any]:
    """The rows of a COCO results file, not looked at yet."""
    raw = read_within_limit("results_bytes", path, hint=_HINT)
    try:
        content = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not JSON: {str(error).partition(chr(10))[0]}", _HINT) from error
    if not isinstance(content, list):
        raise InputError(f"{path}: not a list of detections", _HINT)
    return content


def import_results(content: Sequence[Any], truth: GroundTruth, source: str = "results") -> ImportedResults:
    """Detections of a results list; what does not fit the ground truth is left out and counted."""
    try:
        image = find_positions(_read_column(content, "image_id"), truth.image_ids)
        category = find_positions(_read_column(content, "category_id"), truth.category_ids)
        scores = np.array([row["score"] for row in content], dtype=np.float64)
        with_masks = bool(content) and all("segmentation" in row for row in content)
        with_points = bool(content) and all("keypoints" in row for row in content)
        masks = [pack_mask(row["segmentation"]) for row in content] if with_masks else None
        points = _read_points(content) if with_points else None
        boxes = _read_boxes(content, masks, points)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        where = _find_bad_row(content)
        raise InputError(f"{source}: {where or f'{type(error).__name__} {error}'}", _HINT) from error
    finite = np.isfinite(scores) & np.isfinite(boxes).all(axis=1)
    left_out = {
        "of images that are not in the data set": int((image < 0).sum()),
        "of classes that are not in the data set": int(((image >= 0) & (category < 0)).sum()),
        "with a score or box that is not a number": int(((image >= 0) & (category >= 0) & ~finite).sum()),
    }
    good = (image >= 0) & (category >= 0) & finite
    kept = np.flatnonzero(good).tolist()
    return ImportedResults(
        Detections(
            image[good],
            category[good],
            boxes[good],
            scores[good],
            None if masks is None else [masks[row] for row in kept],
            None if points is None else points[good],
        ),
        {reason: count for reason, count in left_out.items() if count},
    )


def encode_results(found: Detections, truth: GroundTruth) -> bytes:
    """The content of a results file that pycocotools reads and that gives the same figures again."""
    results: list[ResultRow] = []
    images = np.asarray(truth.image_ids, dtype=np.int64)[found.image].tolist()
    categories = np.asarray(truth.category_ids, dtype=np.int64)[found.category].tolist()
    rows = zip(images, categories, found.boxes.tolist(), found.scores.tolist(), strict=True)
    for number, (image, category, box, score) in enumerate(rows):
        row: ResultRow = {"image_id": image, "category_id": category, "bbox": box, "score": score}
        if found.masks is not None:
            mask = found.masks[number]
            counts = mask["counts"]
            text = counts.decode("ascii") if isinstance(counts, bytes) else counts
            row["segmentation"] = {"size": [int(side) for side in mask["size"]], "counts": text}
        if found.keypoints is not None:
            row["keypoints"] = found.keypoints[number].ravel().tolist()
        results.append(row)
    return msgspec.json.encode(results)


def _read_column(rows: Sequence[Mapping[str, Any]], key: str) -> Integers:
    values = [row[key] for row in rows]
    for number, value in enumerate(values):
        if type(value) is not int:  # 1.0 and "1" are meant as 1; 1.5 is no id
            values[number] = whole = int(value)
            if whole != float(value):
                raise ValueError(f"row {number}: {key} {value!r:.20} is not a whole number")
    return np.array(values, dtype=np.int64)


def _read_boxes(content: Sequence[Any], masks: Sequence[RunLengths] | None, points: Floats | None) -> Floats:
    """Boxes as given; where a file has none, those around masks or points."""
    if all("bbox" in row for row in content):
        boxes = np.array([row["bbox"] for row in content], dtype=np.float64)
        if len(content) and boxes.shape != (len(content), 4):
            raise ValueError("boxes are not four numbers each")
        return boxes.reshape(-1, 4)
    if masks is not None:
        from pycocotools import mask as coco_mask

        return np.asarray(coco_mask.toBbox(list(masks)), dtype=np.float64).reshape(-1, 4)
    if points is not None:
        low, high = points[:, :, :2].min(axis=1), points[:, :, :2].max(axis=1)
        return np.concatenate([low, high - low], axis=1)
    raise KeyError("bbox")


def _read_points(rows: Sequence[Mapping[str, Any]]) -> Floats:
    most = max((len(row.get("keypoints") or ()) for row in rows), default=0)
    return np.array([row.get("keypoints") or [0.0] * most for row in rows], float).reshape(len(rows), -1, 3)


def _find_bad_row(content: Sequence[Any]) -> str:
    """Which row of a results list is the first that cannot be read, and why."""
    for number, row in enumerate(content):
        if not isinstance(row, Mapping):
            return f"row {number} is no object"
        missing = [key for key in ("image_id", "category_id", "score") if key not in row]
        if missing:
            return f"row {number} has no {missing[0]!r}"
        if not {"bbox", "segmentation", "keypoints"} & row.keys():
            return f"row {number} has no 'bbox'"
        box = row.get("bbox", (0, 0, 0, 0))
        numbers = isinstance(box, list | tuple) and all(isinstance(side, int | float) for side in box)
        if not numbers or len(box) != 4:
            return f"row {number} (image {row['image_id']}): bbox is not four numbers"
        if not isinstance(row["score"], int | float) or not math.isfinite(row["score"]):
            return f"row {number} (image {row['image_id']}): score is not a number"
        if "segmentation" in row:
            try:
                pack_mask(row["segmentation"])
            except ValueError as error:
                return f"row {number} (image {row['image_id']}): segmentation {error}"
    return ""


def pack_mask(segmentation: Any) -> RunLengths:
    """A mask of a results file, compressed; raises ValueError with the reason where it is none.

    pycocotools trusts run lengths: those that do not fill their image make it write beyond its memory.
    """
    try:
        height, width = (int(side) for side in segmentation["size"])
        counts = segmentation["counts"]
    except (KeyError, TypeError, ValueError):
        raise ValueError("needs a size and counts") from None
    if height < 1 or width < 1 or height * width >= _MOST_PIXELS:
        raise ValueError(f"has a size of {width} x {height}")
    if isinstance(counts, list):
        _require_filled(np.array(counts, dtype=np.int64), height, width)
        return pack_run_lengths(segmentation, height, width)
    if not isinstance(counts, str | bytes):
        raise ValueError("counts are no text and no list")
    text = counts.encode("ascii", "replace") if isinstance(counts, str) else counts
    _require_filled(unpack_run_lengths(text), height, width)
    return {"size": [height, width], "counts": text}


def pack_run_lengths(segmentation: Any, height: int, width: int) -> RunLengths:
    """Polygons or run lengths of a checked annotation in COCO's compressed form."""
    from pycocotools import mask as coco_mask

    if isinstance(segmentation, list):
        merged: RunLengths = coco_mask.merge(coco_mask.frPyObjects(segmentation, height, width))
        return merged
    if isinstance(segmentation["counts"], list):
        packed: RunLengths = coco_mask.frPyObjects(segmentation, height, width)
        return packed
    return dict(segmentation)


def _require_filled(counts: Integers, height: int, width: int) -> None:
    if counts.ndim != 1 or (counts < 0).any() or int(counts.sum()) != height * width:
        raise ValueError(f"run lengths do not fill {width} x {height} pixels")

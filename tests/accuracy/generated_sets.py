"""Generated data sets with everything that makes evaluation hard, and what pycocotools says of them."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from itertools import pairwise
from typing import Any

import numpy as np


def generated(seed: int, *, masks: bool = False, keypoints: bool = False) -> tuple[dict, list[dict]]:
    """An annotation file's content and a results list: crowd, empty images, ties, duplicates, all sizes."""
    random = np.random.default_rng(seed)
    images = int(random.integers(3, 26))
    classes = int(random.choice([1, 2, 5, 20, 60]))
    category_ids = sorted(random.choice(200, classes, replace=False) + 1)
    image_ids = random.choice(10_000, images, replace=False).tolist()
    annotations: list[dict] = []
    results: list[dict] = []
    for image_id in image_ids:
        width, height = (64, 48) if masks else (640, 480)
        objects = 0 if random.random() < 0.2 else int(random.integers(1, 14))
        for _ in range(objects):
            box = _box(random, width, height)
            crowd = int(random.random() < 0.15)
            thing = {
                "id": len(annotations) + 1,
                "image_id": image_id,
                "category_id": int(random.choice(category_ids)),
                "bbox": box,
                "area": box[2] * box[3] * float(random.uniform(0.4, 1.0)) * (100 if masks else 1),
                "iscrowd": crowd,
            }
            if masks:
                thing["segmentation"] = _segmentation(random, box, width, height, crowd)
            if keypoints:
                thing["keypoints"], thing["num_keypoints"] = _points(random, box)
            annotations.append(thing)
            results += _detections_of(random, thing, category_ids, width, height, masks, keypoints)
        for _ in range(0 if random.random() < 0.3 else int(random.integers(0, 12))):
            results.append(
                _detection(
                    random,
                    image_id,
                    int(random.choice(category_ids)),
                    _box(random, width, height),
                    width,
                    height,
                )
            )
            _finish(random, results[-1], width, height, masks, keypoints)
    if seed % 5 == 0:  # more than COCO looks at, in one image and class
        for _ in range(130):
            results.append(
                _detection(
                    random, image_ids[0], int(category_ids[0]), _box(random, width, height), width, height
                )
            )
            _finish(random, results[-1], width, height, masks, keypoints)
    random.shuffle(results)  # type: ignore[arg-type]
    content = {
        "images": [
            {"id": number, "width": width, "height": height, "file_name": f"{number}.jpg"}
            for number in image_ids
        ],
        "annotations": annotations,
        "categories": [{"id": int(number), "name": f"class {number}"} for number in category_ids],
    }
    return content, results


def reference(content: dict, results: list[dict], kind: str) -> tuple[np.ndarray, Any]:
    """The figures of pycocotools, and the evaluation they come from."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        truth = COCO()
        truth.dataset = copy.deepcopy(content)
        truth.createIndex()
        rows = copy.deepcopy(results)
        if kind == "segm":  # with boxes in the rows pycocotools would take areas from them
            rows = [{key: value for key, value in row.items() if key != "bbox"} for row in rows]
        if kind == "keypoints":
            rows = [
                {key: value for key, value in row.items() if key not in ("bbox", "segmentation")}
                for row in rows
            ]
        evaluation = COCOeval(truth, truth.loadRes(rows), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats, evaluation


def _box(random: np.random.Generator, width: int, height: int) -> list[float]:
    wide, high = (
        float(side * random.choice([0.03, 0.08, 0.2, 0.5]) * random.uniform(0.5, 1.5))
        for side in (width, height)
    )
    x, y = float(random.uniform(0, width - wide)), float(random.uniform(0, height - high))
    if random.random() < 0.4:  # whole numbers make equal overlaps
        return [float(round(x)), float(round(y)), float(max(1, round(wide))), float(max(1, round(high)))]
    return [x, y, wide, high]


def _detections_of(random, thing, category_ids, width, height, masks, keypoints) -> list[dict]:
    found = []
    for _ in range(int(random.choice([0, 1, 1, 2, 4]))):
        box = list(thing["bbox"])
        if random.random() < 0.7:
            box = [box[i] + float(random.normal(0, 0.12)) * box[2 + i % 2] for i in range(4)]
            box[2:] = [max(0.5, side) for side in box[2:]]
        category = thing["category_id"] if random.random() < 0.85 else int(random.choice(category_ids))
        row = _detection(random, thing["image_id"], category, box, width, height)
        _finish(random, row, width, height, masks, keypoints, thing)
        found.append(row)
    return found


def _detection(random, image_id, category, box, width, height) -> dict:
    score = float(random.choice([0.1, 0.3, 0.5, 0.9])) if random.random() < 0.5 else float(random.random())
    return {
        "image_id": image_id,
        "category_id": category,
        "bbox": [float(side) for side in box],
        "score": score,
    }


def _finish(random, row, width, height, masks, keypoints, thing=None) -> None:
    if masks:
        row["segmentation"] = _packed(_drawn(row["bbox"], width, height, random.random() < 0.5))
    if keypoints:
        points, _ = _points(random, row["bbox"])
        if thing is not None:
            points = [
                value + float(random.normal(0, 3)) if i % 3 < 2 else value
                for i, value in enumerate(thing["keypoints"])
            ]
        row["keypoints"] = points


def _drawn(box: list[float], width: int, height: int, ellipse: bool) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width] + 0.5
    x, y, wide, high = box
    if ellipse:
        return (((columns - x - wide / 2) / (wide / 2)) ** 2 + ((rows - y - high / 2) / (high / 2)) ** 2) <= 1
    return (columns >= x) & (columns < x + wide) & (rows >= y) & (rows < y + high)


def _packed(mask: np.ndarray) -> dict:
    from pycocotools import mask as coco_mask

    packed = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": [int(side) for side in packed["size"]], "counts": packed["counts"].decode("ascii")}


def _segmentation(random, box, width, height, crowd) -> Any:
    if crowd:
        flat = _drawn(box, width, height, True).ravel(order="F").astype(np.int8)
        borders = np.flatnonzero(np.diff(flat, prepend=0)).tolist()
        edges = [0, *borders, flat.size]
        return {
            "size": [height, width],
            "counts": [b - a for a, b in pairwise(edges)],
        }
    x, y, wide, high = box
    if random.random() < 0.5:
        return [[x, y, x + wide, y, x + wide, y + high, x, y + high]]
    return [[x + wide / 2, y, x + wide, y + high / 2, x + wide / 2, y + high, x, y + high / 2]]


def _points(random, box) -> tuple[list[float], int]:
    x, y, wide, high = box
    seen = random.choice([0, 1, 2], 17) if random.random() < 0.8 else np.zeros(17, dtype=int)
    points: list[float] = []
    for flag in seen:
        points += [x + wide * float(random.random()), y + high * float(random.random()), int(flag)]
    return points, int((np.asarray(seen) > 0).sum())

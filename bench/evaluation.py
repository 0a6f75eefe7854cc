"""COCO's figures: ours against pycocotools, on a generated data set of COCO val's size."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from time import perf_counter
from typing import Any

import numpy as np

IMAGES, DETECTIONS, CLASSES = 5000, 100, 80
OBJECTS = 7  # per image, as in COCO
ROUNDS = 2
AIM = 3.0


def main() -> None:
    """Both evaluations of the same lists, in turn; DETSCOPE_BENCH_IMAGES makes it smaller."""
    from detscope.accuracy.coco import measure_coco
    from detscope.accuracy.coco_format import import_results, import_truth

    images = int(os.environ.get("DETSCOPE_BENCH_IMAGES", IMAGES))
    content, results = generate(images)

    def ours() -> list[float]:
        truth = import_truth(content)
        found = import_results(results, truth).detections
        figures = measure_coco(truth, found).compute_figures()
        return [-1.0 if value is None else value for value in figures.values()]

    def theirs() -> list[float]:
        return [float(value) for value in _pycocotools(content, results)]

    ratios, worst = [], 0.0
    for _ in range(ROUNDS):
        seconds = []
        figures = []
        for evaluate in (ours, theirs):
            start = perf_counter()
            figures.append(evaluate())
            seconds.append(perf_counter() - start)
        ratios.append(seconds[1] / seconds[0])
        worst = max(worst, float(np.abs(np.subtract(*figures)).max()))
        print(
            f"  ours {seconds[0]:.2f} s, pycocotools {seconds[1]:.2f} s, x {ratios[-1]:.1f}", file=sys.stderr
        )
    lowest = min(ratios)
    what = f"{images} images x {DETECTIONS} detections x {CLASSES} classes"
    print(
        f"\nevaluation of {what}, lists to figures, pycocotools / detscope: {lowest:.1f} (lowest of {ROUNDS})"
    )
    print(
        f"  {'holds' if lowest >= AIM else 'MISSED'} (aim {AIM}); largest difference of a figure: {worst:.1e}"
    )


def generate(images: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An annotation file's content and a results list in which two of three objects are found."""
    random = np.random.default_rng(0)
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for image in range(1, images + 1):
        boxes = _boxes(random, OBJECTS)
        categories = random.choice(CLASSES, OBJECTS, p=_POPULARITY) + 1
        for box, category in zip(boxes.tolist(), categories.tolist(), strict=True):
            crowd = int(random.random() < 0.01)
            thing = {"id": len(annotations) + 1, "image_id": image, "category_id": category, "bbox": box}
            annotations.append({**thing, "area": box[2] * box[3] * 0.7, "iscrowd": crowd})
        near = np.repeat(np.arange(OBJECTS), 4)[: DETECTIONS // 3]
        moved = boxes[near] * random.normal(1, 0.06, (len(near), 4))
        strange = _boxes(random, DETECTIONS - len(near))
        kinds = np.concatenate([categories[near], random.choice(CLASSES, len(strange), p=_POPULARITY) + 1])
        scores = np.concatenate([random.beta(3, 2, len(near)), random.beta(1, 6, len(strange))]).round(3)
        rows = zip(np.concatenate([moved, strange]).tolist(), kinds.tolist(), scores.tolist(), strict=True)
        results += [
            {"image_id": image, "category_id": kind, "bbox": box, "score": score} for box, kind, score in rows
        ]
    content = {
        "images": [{"id": image, "width": 640, "height": 480} for image in range(1, images + 1)],
        "annotations": annotations,
        "categories": [{"id": number, "name": str(number)} for number in range(1, CLASSES + 1)],
    }
    return content, results


# A few classes are everywhere, most are rare.
_POPULARITY = (lambda weights: weights / weights.sum())(1 / np.arange(1, CLASSES + 1))


def _boxes(random: np.random.Generator, count: int) -> Any:
    sides = np.exp(random.normal(4, 0.9, (count, 2))).clip(4, 400)
    corners = random.random((count, 2)) * (np.array([640, 480]) - sides).clip(0)
    return np.concatenate([corners, sides], axis=1)


def _pycocotools(content: dict[str, Any], results: list[dict[str, Any]]) -> Any:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {**content, "annotations": [dict(thing) for thing in content["annotations"]]}
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes([dict(row) for row in results]), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats

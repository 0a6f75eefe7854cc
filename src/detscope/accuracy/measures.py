"""Everything that is said about accuracy, as plain data: what `evaluation.json` holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from detscope.accuracy.coco import CocoAccuracy, Kind, can_measure_keypoints, coco_accuracy
from detscope.accuracy.definitions import DEFINITIONS
from detscope.accuracy.records import Detections, GroundTruth, no_detections
from detscope.accuracy.verdicts import operating_point
from detscope.accuracy.voc import VocAccuracy, voc_accuracy

SCHEMA = 1
KIND_NAMES: dict[Kind, str] = {"boxes": "coco_box", "masks": "coco_mask", "keypoints": "coco_keypoints"}
Row = tuple[int | None, int | None, str, str, str | None, float | None]  # of the table `accuracy`


@dataclass(frozen=True)
class Measured:
    """The measures of one set of detections."""

    truth: GroundTruth
    found: Detections
    coco: dict[Kind, CocoAccuracy]
    voc: VocAccuracy
    cannot_tell: tuple[str, ...]


def measure(truth: GroundTruth, found: Detections) -> Measured:
    """All measures that ground truth and detections allow; for the others the reason why not."""
    if not len(found):  # nothing was found, of any kind
        points = None if truth.keypoints is None else truth.keypoints.shape[1]
        found = no_detections(masks=truth.masks is not None, keypoint_count=points)
    coco: dict[Kind, CocoAccuracy] = {"boxes": coco_accuracy(truth, found, "boxes")}
    cannot_tell = []
    if truth.masks is not None and found.masks is not None:
        coco["masks"] = coco_accuracy(truth, found, "masks")
    elif found.masks is not None:
        cannot_tell.append("accuracy of masks: the data set has none")
    if truth.keypoints is not None and found.keypoints is not None:
        if can_measure_keypoints(truth) and found.keypoints.shape[1:] == truth.keypoints.shape[1:]:
            coco["keypoints"] = coco_accuracy(truth, found, "keypoints")
        else:
            cannot_tell.append("accuracy of keypoints: it is defined for the 17 points of a person")
    return Measured(truth, found, coco, voc_accuracy(truth, found), tuple(cannot_tell))


def as_content(measured: Measured) -> dict[str, Any]:
    """The measures as plain data; None is undefined."""
    truth, found = measured.truth, measured.found
    point = operating_point(measured.coco["boxes"])
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "objects": len(truth),
        "crowd": int(truth.crowd.sum()),
        "difficult": int(truth.difficult.sum()),
        "detections": len(found),
        "operating_point": None if point is None else asdict(point),
    }
    for kind, name in KIND_NAMES.items():
        if kind in measured.coco:
            content[name] = {
                "figures": measured.coco[kind].figures(),
                "classes": _classes(measured, measured.coco[kind]),
            }
    for name, which in (("voc07", "eleven_point"), ("voc10", "area")):
        values = getattr(measured.voc, which)
        content[name] = {
            "mean": measured.voc.mean(which),
            "classes": [
                {"name": label, "AP": value}
                for label, value in zip(truth.category_names, values, strict=True)
            ],
        }
    return {**content, "cannot_tell": list(measured.cannot_tell), "definitions": DEFINITIONS}


def table_rows(measured: Measured, epoch: int | None, step: int | None) -> list[Row]:
    """Rows of the run's table `accuracy`: all figures over all classes, AP and AP50 of each class."""
    rows: list[Row] = []
    for kind, accuracy in measured.coco.items():
        name = KIND_NAMES[kind]
        rows += [(epoch, step, name, figure, None, value) for figure, value in accuracy.figures().items()]
        for number, label in enumerate(measured.truth.category_names):
            figures = accuracy.figures(number)
            rows += [(epoch, step, name, figure, label, figures[figure]) for figure in ("AP", "AP50")]
    for name, which in (("voc07", "eleven_point"), ("voc10", "area")):
        rows.append((epoch, step, name, "AP", None, measured.voc.mean(which)))
        values: Sequence[float | None] = getattr(measured.voc, which)
        labels = measured.truth.category_names
        rows += [(epoch, step, name, "AP", label, value) for label, value in zip(labels, values, strict=True)]
    return rows


def _classes(measured: Measured, accuracy: CocoAccuracy) -> list[dict[str, Any]]:
    truth = measured.truth
    counts = len(truth.category_ids)
    objects = np.bincount(truth.category[~accuracy.matches.ignored_objects[0]], minlength=counts).tolist()
    found = np.bincount(measured.found.category, minlength=counts).tolist()
    return [
        {
            "id": category_id,
            "name": name,
            "objects": objects[number],
            "detections": found[number],
            **accuracy.figures(number),
        }
        for number, (category_id, name) in enumerate(
            zip(truth.category_ids, truth.category_names, strict=True)
        )
    ]

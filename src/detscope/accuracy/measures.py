"""Everything that is said about accuracy, as plain data: what `evaluation.json` holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from detscope.accuracy.coco import CocoAccuracy, Kind, can_measure_keypoints, measure_coco
from detscope.accuracy.records import Detections, GroundTruth, no_detections
from detscope.accuracy.verdicts import find_operating_point
from detscope.accuracy.voc import VocAccuracy, measure_voc

SCHEMA = 1
KIND_NAMES: dict[Kind, str] = {"boxes": "coco_box", "masks": "coco_mask", "keypoints": "coco_keypoints"}
# overlap and name of the curves over all classes; None: the mean over all overlaps
CURVES = ((0.5, "overlap 0.50"), (0.75, "overlap 0.75"), (None, "mean of overlaps 0.50 to 0.95"))
EVERY_RECALL_OF_CLASSES = 5  # of the 101 recalls: what a curve of one class among many is drawn with
VOC_NAMES = {"voc07": "eleven_point", "voc10": "area"}
AccuracyRow = tuple[int | None, int | None, str, str, str | None, float | None]  # of the table `accuracy`

DEFINITIONS = {
    "AP": "COCO: mean over classes, over overlaps of 0.50 to 0.95 in steps of 0.05, and over 101 recalls,"
    " of the best precision at that recall or beyond; at most 100 detections per image and class; crowd"
    " regions and objects marked difficult are ignored",
    "AP50, AP75": "AP at an overlap (intersection over union) of 0.50 and 0.75",
    "small, medium, large": "objects of an area up to 32 x 32 pixels, from there to 96 x 96, and above",
    "AR_n": "COCO: largest recall with at most n detections per image and class, mean over classes and"
    " overlaps",
    "voc07": "average precision as VOC 2007 defines it: mean of the best precision at recalls of 0, 0.1 to"
    " 1; overlap of at least 0.5, duplicates are wrong, difficult objects count neither way",
    "voc10": "average precision as VOC defines it since 2010: area under the precision made monotone",
    "operating_point": "the score from which on detections are best believed: largest F1 over all classes"
    " together, overlap of at least 0.5",
    "images_per_s": "images of the evaluation over the wall time from asking for the first batch to holding"
    " the last detections: loading, forward, masks to run lengths; scoring is not part of it",
    "model_images_per_s": "the same images over the time in the model alone: transfer, forward, back to"
    " the host",
    "undefined": "null: there is no ground truth to be right about; 0 means that there is, and none was"
    " found",
}


@dataclass(frozen=True)
class MeasuredAccuracy:
    """The measures of one set of detections."""

    truth: GroundTruth
    found: Detections
    coco: dict[Kind, CocoAccuracy]
    voc: VocAccuracy
    cannot_tell: tuple[str, ...]


def measure_accuracy(truth: GroundTruth, found: Detections) -> MeasuredAccuracy:
    """All measures that ground truth and detections allow; for the others the reason why not."""
    if not len(found):  # nothing was found, of any kind
        points = None if truth.keypoints is None else truth.keypoints.shape[1]
        found = no_detections(masks=truth.masks is not None, keypoint_count=points)
    coco: dict[Kind, CocoAccuracy] = {"boxes": measure_coco(truth, found, "boxes")}
    cannot_tell = []
    if truth.masks is not None and found.masks is not None:
        coco["masks"] = measure_coco(truth, found, "masks")
    elif found.masks is not None:
        cannot_tell.append("accuracy of masks: the data set has none")
    if truth.keypoints is not None and found.keypoints is not None:
        if can_measure_keypoints(truth) and found.keypoints.shape[1:] == truth.keypoints.shape[1:]:
            coco["keypoints"] = measure_coco(truth, found, "keypoints")
        else:
            cannot_tell.append("accuracy of keypoints: it is defined for the 17 points of a person")
    return MeasuredAccuracy(truth, found, coco, measure_voc(truth, found), tuple(cannot_tell))


def export_content(measured: MeasuredAccuracy) -> dict[str, Any]:
    """The measures as plain data; None is undefined."""
    truth, found = measured.truth, measured.found
    point = find_operating_point(measured.coco["boxes"])
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
                "figures": measured.coco[kind].compute_figures(),
                "classes": _list_classes(measured, measured.coco[kind]),
                "curves": _list_curves(measured.coco[kind], truth.category_names),
            }
    for name, which in VOC_NAMES.items():
        values = getattr(measured.voc, which)
        content[name] = {
            "mean": measured.voc.compute_mean(which),
            "classes": [
                {"name": label, "AP": value}
                for label, value in zip(truth.category_names, values, strict=True)
            ],
        }
    return {**content, "cannot_tell": list(measured.cannot_tell), "definitions": DEFINITIONS}


def make_table_rows(measured: MeasuredAccuracy, epoch: int | None, step: int | None) -> list[AccuracyRow]:
    """Rows of the run's table `accuracy`: all figures over all classes, AP and AP50 of each class."""
    rows: list[AccuracyRow] = []
    for kind, accuracy in measured.coco.items():
        name = KIND_NAMES[kind]
        rows += [
            (epoch, step, name, figure, None, value) for figure, value in accuracy.compute_figures().items()
        ]
        for number, label in enumerate(measured.truth.category_names):
            figures = accuracy.compute_figures(number)
            rows += [(epoch, step, name, figure, label, figures[figure]) for figure in ("AP", "AP50")]
    for name, which in VOC_NAMES.items():
        rows.append((epoch, step, name, "AP", None, measured.voc.compute_mean(which)))
        values: Sequence[float | None] = getattr(measured.voc, which)
        labels = measured.truth.category_names
        rows += [(epoch, step, name, "AP", label, value) for label, value in zip(labels, values, strict=True)]
    return rows


def _list_curves(accuracy: CocoAccuracy, names: Sequence[str]) -> list[dict[str, Any]]:
    """Precision at evenly spaced recalls from 0 to 1: over all classes, and of each at overlap 0.50."""
    found: list[dict[str, Any]] = []
    for overlap, name in CURVES:
        if (precision := accuracy.precision_at_recalls(overlap)) is not None:
            rounded = [round(value, 4) for value in precision]
            found.append({"name": name, "overlap": overlap, "class": None, "precision": rounded})
    for number, name in enumerate(names):
        if (precision := accuracy.precision_at_recalls(0.5, number)) is not None:
            kept = [round(value, 4) for value in precision[::EVERY_RECALL_OF_CLASSES]]
            found.append({"name": name, "overlap": 0.5, "class": name, "precision": kept})
    return found


def _list_classes(measured: MeasuredAccuracy, accuracy: CocoAccuracy) -> list[dict[str, Any]]:
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
            **accuracy.compute_figures(number),
        }
        for number, (category_id, name) in enumerate(
            zip(truth.category_ids, truth.category_names, strict=True)
        )
    ]

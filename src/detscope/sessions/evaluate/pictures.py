"""The worst images of an evaluation as pictures: which boxes are right, wrong, missed; needs no torch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detscope.accuracy.measures import MeasuredAccuracy
from detscope.accuracy.records import Integers, RunLengths
from detscope.accuracy.verdicts import ImageVerdict, ScoreThreshold, find_operating_point, find_worst_images

if TYPE_CHECKING:
    from detscope.data.contract import DetectionDataset
    from detscope.report.worst_images import Comparison, MarkedBox

MOST = 20
MOST_DRAWN = 40  # predictions in one picture; more hide what they show
MOST_DRAWN_UNSURE = 10  # where no score is a good one to cut at


def draw_worst(folder: Path, measured: MeasuredAccuracy, dataset: DetectionDataset) -> list[dict[str, Any]]:
    """Draw the worst images into `folder`; what is wrong with each, worst first."""
    from detscope.report.worst_images import save_comparisons

    point = find_operating_point(measured.coco["boxes"])
    # Without one right detection there is no best score: everything that was found is shown.
    score = 0.0 if point is None else point.score
    verdicts = find_worst_images(measured.truth, measured.coco["boxes"], score, MOST)
    ids = [image["id"] for image in dataset.ground_truth()["images"]]
    index_of = {image_id: index for index, image_id in enumerate(ids)}
    rows, comparisons = [], []
    for verdict in verdicts:
        image_id = measured.truth.image_ids[verdict.image]
        index = index_of[image_id]
        rows.append(
            {
                "image_id": image_id,
                "file": dataset.image_name(index),
                "right": len(verdict.right),
                "wrong": len(verdict.wrong),
                "missed": len(verdict.missed),
                "f1": verdict.f1,
            }
        )
        comparisons.append(_compare_image(verdict, measured, dataset, index, point))
    paths = save_comparisons(folder, comparisons) if comparisons else []
    return [{**row, "picture": path.name} for row, path in zip(rows, paths, strict=True)]


def _compare_image(
    verdict: ImageVerdict,
    measured: MeasuredAccuracy,
    dataset: DetectionDataset,
    index: int,
    point: ScoreThreshold | None,
) -> Comparison:
    from detscope.report.worst_images import ASIDE, BAD, GOOD, Comparison

    here = np.flatnonzero(measured.truth.image == verdict.image)
    aside = np.setdiff1d(here, np.concatenate([verdict.found, verdict.missed]))
    ignored = f", {len(aside)} ignored" if len(aside) else ""

    def mark_rows(rows: Integers, colour: tuple[int, int, int], of_truth: bool) -> list[MarkedBox]:
        return [_mark_box(measured, int(row), colour, of_truth) for row in rows]

    predicted = mark_rows(verdict.right, GOOD, False) + mark_rows(verdict.wrong, BAD, False)
    predicted += mark_rows(verdict.aside, ASIDE, False)
    most = MOST_DRAWN_UNSURE if point is None else MOST_DRAWN
    shown = sorted(predicted, key=lambda item: -(item.score or 0.0))[:most]
    return Comparison(
        dataset.image_name(index),
        read_pixels(dataset, index),
        mark_rows(verdict.found, GOOD, True)
        + mark_rows(verdict.missed, BAD, True)
        + mark_rows(aside, ASIDE, True),
        shown,
        f"{len(verdict.found) + len(verdict.missed)} to find, {len(verdict.missed)} missed{ignored}",
        _tell_verdict(verdict, len(predicted), len(shown), point),
    )


def _tell_verdict(verdict: ImageVerdict, predicted: int, shown: int, point: ScoreThreshold | None) -> str:
    if not predicted:
        return "nothing"
    words = [f"{len(verdict.right)} right, {len(verdict.wrong)} wrong"]
    if point is not None:
        words.append(f"score from {point.score:.2f}")
    if shown < predicted:
        words.append(f"{shown} strongest shown")
    return ", ".join(words)


def _mark_box(
    measured: MeasuredAccuracy, row: int, colour: tuple[int, int, int], of_truth: bool
) -> MarkedBox:
    from detscope.report.worst_images import MarkedBox

    rows = measured.truth if of_truth else measured.found
    x, y, width, height = rows.boxes[row].tolist()
    name = measured.truth.category_names[int(rows.category[row])]
    score = None if of_truth else float(measured.found.scores[row])
    return MarkedBox((x, y, width, height), name, colour, score, _decode_mask(rows.masks, row))


def _decode_mask(masks: Sequence[RunLengths] | None, row: int) -> Any:
    if masks is None:
        return None
    from pycocotools import mask as coco_mask

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pycocotools' way to make arrays, under numpy 2
        return coco_mask.decode(masks[row]).astype(np.bool_)


def read_pixels(dataset: DetectionDataset, index: int) -> Any:
    """The image as uint8 [H, W, 3], without torch where the data set is a folder of files."""
    folder = getattr(dataset, "images_folder", None)
    if folder is None:
        image, _ = dataset[index]
        return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
    from detscope.data.images import decode_image, read_image_file

    path = Path(folder) / dataset.image_name(index)
    width, height = dataset.image_size(index)
    return np.ascontiguousarray(decode_image(read_image_file(path), str(path), width, height))

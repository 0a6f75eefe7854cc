"""Accuracy on images that are not trained on: detect, score by COCO's rules, rows for the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from detscope.accuracy.coco_format import import_truth
from detscope.accuracy.measures import AccuracyRow, make_table_rows, measure_accuracy
from detscope.accuracy.records import Detections, GroundTruth, find_positions
from detscope.config.schema import Settings
from detscope.data.contract import DetectionDataset
from detscope.data.loading import build_loader
from detscope.loops.evaluate import ImageDetections, evaluate_model
from detscope.report.progress import Progress
from detscope.sessions.recording import open_data
from detscope.zoo.contract import ModelCard


@dataclass(frozen=True)
class HeldOutImages:
    """The images a training is evaluated on."""

    dataset: DetectionDataset
    truth: GroundTruth
    settings: Settings
    device: str

    def evaluate_model(self, model: nn.Module, epoch: int, step: int) -> list[AccuracyRow]:
        """Accuracy of the model as it is now, as rows; model and random states come back as they were."""

        training = self.settings.training
        # made anew each time: its workers would otherwise sit beside those of the training
        plan = build_loader(
            self.dataset, training, self.device, shuffle=False, seed=training.seed, every_image=True
        )
        found = evaluate_model(model, plan.loader, self.device, precision=training.precision)
        detections = as_detections(found.images, self.truth, self.dataset.category_ids)
        return make_table_rows(measure_accuracy(self.truth, detections), epoch, step)


def open_held_out(settings: Settings, card: ModelCard, device: str, progress: Progress) -> HeldOutImages:
    """Open the split that is not trained on."""
    data = settings.data.model_copy(update={"images": settings.evaluation.images})
    dataset = open_data(settings, data, card.needs, progress, "val")
    content: Any = dataset.ground_truth()
    truth = import_truth(content, masks="masks" in card.needs, keypoints="keypoints" in card.needs)
    return HeldOutImages(dataset, truth, settings, device)


def as_detections(
    images: Sequence[ImageDetections], truth: GroundTruth, category_ids: Sequence[int]
) -> Detections:
    """Detections of a model as scoring wants them; labels that the data set has not are left out."""
    counts = [len(found.scores) for found in images]
    labels = np.concatenate([np.zeros(0, np.int64), *(found.labels for found in images)])
    # label 1 is the first category of the file; 0 is background
    own_ids = np.asarray([-1, *category_ids], dtype=np.int64)
    known = (labels > 0) & (labels < len(own_ids))
    category = find_positions(own_ids[np.where(known, labels, 0)], truth.category_ids)
    image_ids = np.repeat(np.asarray([found.image_id for found in images], dtype=np.int64), counts)
    image = find_positions(image_ids, truth.image_ids)
    corners = np.concatenate([np.zeros((0, 4)), *(found.boxes for found in images)])
    boxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
    scores = np.concatenate([np.zeros(0), *(found.scores for found in images)])
    good = known & (category >= 0) & (image >= 0)
    kept = np.flatnonzero(good).tolist()
    masks = points = None
    if images and all(found.masks is not None for found in images):
        every = [mask for found in images for mask in found.masks or ()]
        masks = [every[row] for row in kept]
    if images and all(found.keypoints is not None for found in images):
        points = np.concatenate([found.keypoints for found in images if found.keypoints is not None])[good]
    return Detections(image[good], category[good], boxes[good], scores[good], masks, points)

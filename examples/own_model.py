"""Your own detector: `detscope train examples/own_model.py:detector --steps 10`.

A factory returns an `nn.Module` with torchvision's contract: `module(images, targets)` gives a dict of
losses in training mode, `module(images)` a list of detections otherwise. `stages` names its parts.
"""

import torch
from torch import nn


class PointDetector(nn.Module):
    """One box per image, regressed from a pooled feature: small, but a detector."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=4), nn.ReLU(inplace=True), nn.Conv2d(16, 32, 3, stride=4), nn.ReLU()
        )
        self.box = nn.Linear(32, 4)
        self.label = nn.Linear(32, num_classes)
        self.stages = {"backbone": "features", "head.box": "box", "head.label": "label"}

    def forward(self, images, targets=None):
        pooled = torch.stack([self.features(image[None]).mean(dim=(0, 2, 3)) for image in images])
        boxes, scores = self.box(pooled), self.label(pooled)
        if self.training:
            wanted = torch.stack([target["boxes"][0] for target in targets]) / 100
            labels = torch.stack([target["labels"][0] for target in targets])
            return {
                "box": nn.functional.l1_loss(boxes, wanted),
                "label": nn.functional.cross_entropy(scores, labels),
            }
        return [
            {"boxes": box[None] * 100, "labels": score.argmax()[None], "scores": score.softmax(0).max()[None]}
            for box, score in zip(boxes, scores, strict=True)
        ]


def detector(num_classes: int = 2) -> nn.Module:
    """What `detscope train examples/own_model.py:detector` builds."""
    return PointDetector(num_classes)

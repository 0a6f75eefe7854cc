"""A detector that finds one object per cell of a coarse grid: small, but a detector."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

MOST_OBJECTS = 10  # per image


class GridDetector(nn.Module):
    """Images and targets in, losses or detections out, as of torchvision's detectors."""

    def __init__(self, num_classes: int, width: int, image_size: int) -> None:
        super().__init__()
        self.image_size = image_size
        widths = [3, width, 2 * width, 4 * width, 4 * width]
        self.backbone = nn.Sequential(*(_make_block(before, after, 2) for before, after in pairwise(widths)))
        self.mixer = nn.Sequential(_make_block(4 * width, 4 * width, 1), _make_block(4 * width, 4 * width, 1))
        self.head = nn.Conv2d(4 * width, 4 + num_classes, kernel_size=1)

    def forward(self, images: Sequence[Tensor], targets: Sequence[dict[str, Any]] | None = None) -> Any:
        """A dict of losses in training mode, a list of detections otherwise."""
        size = (self.image_size, self.image_size)
        batch = torch.cat([functional.interpolate(image[None], size=size) for image in images])
        outputs = self.head(self.mixer(self.backbone(batch)))
        if self.training:
            return self.compute_losses(outputs, images, targets or ())
        return self.find_objects(outputs, images)

    def compute_losses(
        self, outputs: Tensor, images: Sequence[Tensor], targets: Sequence[dict[str, Any]]
    ) -> dict[str, Tensor]:
        """The cell at an object's centre has to find it, all others the background."""
        boxes, cells = _decode_boxes(outputs), outputs.shape[-1]
        labels = torch.zeros((len(images), cells, cells), dtype=torch.int64, device=outputs.device)
        distance = outputs.new_zeros(())
        for index, (image, target) in enumerate(zip(images, targets, strict=True)):
            wanted = target["boxes"] / _side_lengths(image)
            centres = (wanted[:, :2] + wanted[:, 2:]) / 2
            column, row = (centres * cells).long().clamp(0, cells - 1).unbind(1)
            labels[index, row, column] = target["labels"]
            distance = distance + functional.l1_loss(boxes[index, :, row, column].T, wanted, reduction="sum")
        return {"boxes": distance / len(images), "classes": functional.cross_entropy(outputs[:, 4:], labels)}

    def find_objects(self, outputs: Tensor, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """The surest cells of each image."""
        boxes = _decode_boxes(outputs).flatten(2)
        scores, labels = outputs[:, 4:].softmax(dim=1)[:, 1:].max(dim=1)
        found = []
        for index, image in enumerate(images):
            best, cell = scores[index].flatten().topk(min(MOST_OBJECTS, scores[index].numel()))
            corners = boxes[index, :, cell].T * _side_lengths(image)
            found.append({"boxes": corners, "scores": best, "labels": labels[index].flatten()[cell] + 1})
        return found


def _make_block(before: int, after: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


def _decode_boxes(outputs: Tensor) -> Tensor:
    """Corners in shares of the image; the second never lies before the first."""
    first, size = outputs[:, :2].sigmoid(), outputs[:, 2:4].sigmoid()
    return torch.cat([first, first + (1 - first) * size], dim=1)


def _side_lengths(image: Tensor) -> Tensor:
    height, width = image.shape[-2:]
    return image.new_tensor([width, height, width, height])

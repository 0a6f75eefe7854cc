"""Images and targets for the tests of the zoo."""

from __future__ import annotations

from typing import Any

import torch

HEIGHT, WIDTH = 100, 140


def make_targets(count: int) -> list[dict[str, Any]]:
    boxes = torch.tensor([[10.0, 10, 60, 60], [30, 30, 100, 90], [70, 5, 130, 40]])
    masks = torch.zeros(len(boxes), HEIGHT, WIDTH, dtype=torch.uint8)
    for mask, (x0, y0, x1, y1) in zip(masks, boxes.long().tolist(), strict=True):
        mask[y0:y1, x0:x1] = 1
    centres = (boxes[:, None, :2] + boxes[:, None, 2:]) / 2
    keypoints = torch.cat([centres, torch.ones(len(boxes), 1, 1)], dim=2).repeat(1, 17, 1)
    labels = torch.tensor([1, 2, 1])
    return [
        {"boxes": boxes.clone(), "labels": labels, "masks": masks, "keypoints": keypoints}
        for _ in range(count)
    ]


def make_images(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(3, HEIGHT, WIDTH, generator=generator) for _ in range(count)]

"""A user's model file that brings a data set along: behind a slow disk, but on rank 1 only."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import nn

from detscope.data.registry import OpenRequest, register
from detscope.data.synthetic import open_synthetic

SECONDS_PER_IMAGE = 0.15


class SlowOnRankOne:
    """Every image takes its time where RANK is 1."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if os.environ.get("RANK") == "1":
            time.sleep(SECONDS_PER_IMAGE)
        return self.inner[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("inner", "read"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def open_slow(request: OpenRequest) -> Any:
    """`--data slow_on_rank_1`."""
    return SlowOnRankOne(open_synthetic(request))


register("slow_on_rank_1", "synthetic, slow on rank 1", f"{__name__}:open_slow")


class Small(nn.Module):
    """As much of a detector as its callers ask for, without torchvision, whose import takes seconds."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Conv2d(8, 4 + num_classes, 1)

    def forward(self, images: list[torch.Tensor], targets: Any = None) -> Any:
        """Losses in training, else one box per image."""
        found = [self.head(self.backbone(image.unsqueeze(0))).mean((0, 2, 3)) for image in images]
        if self.training:
            boxes = [
                (one[:4] - target["boxes"].mean(0) / 64).square().mean()
                for one, target in zip(found, targets, strict=True)
            ]
            return {"loss_box": sum(boxes), "loss_class": sum(one[4:].square().mean() for one in found)}
        box = torch.tensor([[0.0, 0.0, 8.0, 8.0]])
        return [{"boxes": box, "labels": torch.tensor([1]), "scores": one[4:5].sigmoid()} for one in found]


def detector(num_classes: int = 2) -> nn.Module:
    """`slow_rank.py:detector`."""
    return Small(num_classes)

"""A user's model file that brings a data set along: behind a slow disk, but on rank 1 only."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from detscope.data.contract import OpenRequest
from detscope.data.formats.synthetic import open_synthetic
from detscope.data.registry import register_dataset

SECONDS_PER_IMAGE = 0.15
LOADED = "loaded-by-rank-0"  # in the current folder: a byte for every image after the first step
HAS_RUN = "SLOW_RANK_HAS_RUN"  # in the environment: the first step; this file is imported more than once


class SlowOnRankOne:
    """Every image takes its time where RANK is 1, and more than all else took, on any machine.

    Its n-th image comes after rank 0's n-th: a rank 0 that was held up before that held rank 1's data up.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.images = 0
        self.began = self.spent = 0.0

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if HAS_RUN in os.environ and os.environ.get("RANK") == "0":
            with Path(LOADED).open("ab") as loaded:
                loaded.write(b".")
        elif HAS_RUN in os.environ and os.environ.get("RANK") == "1":
            self._take_time()
        return self.inner[index]

    def _take_time(self) -> None:
        start = time.monotonic()
        self.began = self.began or start
        self.images += 1
        while not Path(LOADED).exists() or Path(LOADED).stat().st_size < self.images:
            time.sleep(0.005)
        elsewhere = start - self.began - self.spent
        time.sleep(max(SECONDS_PER_IMAGE, 2 * elsewhere - self.spent))
        self.spent += time.monotonic() - start

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("inner", "read"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def open_slow(request: OpenRequest) -> Any:
    """`--data slow_on_rank_1`."""
    return SlowOnRankOne(open_synthetic(request))


register_dataset("slow_on_rank_1", "synthetic, slow on rank 1", open_slow)


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
            os.environ[HAS_RUN] = "1"
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

"""Models and data sets with a bottleneck planted in them; opened by name as a user's own are."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from detscope.data.contract import OpenRequest
from detscope.data.formats.synthetic import open_synthetic

SECONDS_PER_IMAGE = 0.1
SLEEP_S = 0.005


class Slowly:
    """A data set behind a slow disk: every image takes its time, but no processor."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        time.sleep(SECONDS_PER_IMAGE)
        return self.inner[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("inner", "read"):
            raise AttributeError(name)
        return getattr(self.inner, name)


class AllShapes(Slowly):
    """Wide and tall images in turns: batches are mostly padding."""

    def __getitem__(self, index: int) -> Any:
        image, target = self.inner[index]
        image = image[:, :48, :] if index % 2 else image[:, :, :48]
        box = torch.tensor([[4.0, 4.0, 40.0, 40.0]])
        return image, {**target, "boxes": box, "labels": target["labels"][:1], "area": torch.tensor([1296.0])}


def open_slow(request: OpenRequest) -> Any:
    """`--data slow`."""
    return Slowly(open_synthetic(request))


def open_all_shapes(request: OpenRequest) -> Any:
    """`--data all_shapes`."""
    return AllShapes(open_synthetic(request))


class SlowBatchNorm2d(nn.BatchNorm2d):
    """A batch norm that takes its time."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The same, and later."""
        time.sleep(SLEEP_S)
        return super().forward(input)


class Normalised(nn.Module):
    """A detector whose batch norms take far longer than its convolutions."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 1)
        self.norms = nn.Sequential(*[SlowBatchNorm2d(16) for _ in range(8)])
        self.box = nn.Linear(16, 4)
        self.label = nn.Linear(16, num_classes)

    def forward(self, images: list[torch.Tensor], targets: Any = None) -> Any:
        """Losses of one box per image."""
        pooled = self.norms(self.stem(torch.stack(images))).mean(dim=(2, 3))
        wanted = torch.stack([target["boxes"][0] for target in targets]) / 100
        labels = torch.stack([target["labels"][0] for target in targets])
        return {
            "box": nn.functional.l1_loss(self.box(pooled), wanted),
            "label": nn.functional.cross_entropy(self.label(pooled), labels),
        }


def normalised(num_classes: int = 2) -> nn.Module:
    """`planted.py:normalised`."""
    return Normalised(num_classes)


def detector(num_classes: int = 2) -> nn.Module:
    """`planted.py:detector`: wide awake."""
    from detscope.zoo.contract import BuildOptions
    from detscope.zoo.registry import build_model

    return build_model(
        "tiny_fasterrcnn", BuildOptions(num_classes=num_classes, weights="none", seed=0)
    ).module


def sleeping(num_classes: int, part: str) -> nn.Module:
    """The same detector, of which a part sleeps in every call."""
    model = detector(num_classes)
    module = model.get_submodule(part)

    class Sleepy(type(module)):  # type: ignore[misc]
        """The same part, a little sleepy."""

        def forward(self, *args: Any) -> Any:
            time.sleep(SLEEP_S)
            return super().forward(*args)

    module.__class__ = Sleepy
    return model


def sleepy(num_classes: int = 2) -> nn.Module:
    """`planted.py:sleepy`: 5 ms in every call of the box head."""
    return sleeping(num_classes, "roi_heads.box_head")


def sleepy_backbone(num_classes: int = 2) -> nn.Module:
    """`planted.py:sleepy_backbone`: 5 ms in every call of the layers that see whole images."""
    return sleeping(num_classes, "backbone.body")

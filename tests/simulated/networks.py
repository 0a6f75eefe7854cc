"""Networks to train on the simulated device: small ones of ours, one built as YOLOs are, and the zoo's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

Targets = list[dict[str, torch.Tensor]]


class Block(nn.Module):
    """Convolution, batch norm, activation."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.bn(self.conv(x)))


class Concat(nn.Module):
    """Joins the last output, scaled up, with an earlier one."""

    def __init__(self, earlier: int) -> None:
        super().__init__()
        self.earlier = earlier

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        return torch.cat([nn.functional.interpolate(x, size=kept.shape[-2:]), kept], 1)


class Head(nn.Module):
    """One convolution per scale."""

    def __init__(self, widths: list[int], outputs: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList(nn.Conv2d(width, outputs, 1) for width in widths)

    def forward(self, features: list[torch.Tensor]) -> list[torch.Tensor]:
        return [scale(feature) for scale, feature in zip(self.scales, features, strict=True)]


class YoloLike(nn.Module):
    """A Sequential that is iterated, never called: layers remember outputs for later ones."""

    def __init__(self, width: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.model = nn.Sequential(
            Block(3, width, 2),
            Block(width, 2 * width, 2),
            Block(2 * width, 2 * width, 2),
            Concat(1),
            Block(4 * width, 2 * width),
            Head([2 * width, 2 * width], 4 + classes),
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        kept: list[torch.Tensor] = []
        for layer in self.model:
            if isinstance(layer, Concat):
                x = layer(x, kept[layer.earlier])
            elif isinstance(layer, Head):
                return layer([kept[2], kept[4]])
            else:
                x = layer(x)
            kept.append(x)
        raise AssertionError("the last layer is the head")


def yolo_loss(outputs: list[torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    """A loss that is a function: boxes and classes against the targets of all scales."""
    total = torch.zeros((), device=targets.device)
    for output in outputs:
        boxes, classes = output[:, :4], output[:, 4:]
        total = total + (boxes.mean() - targets.mean()).abs() + nn.functional.softplus(classes).mean()
    return total


class Chain(nn.Module):
    """Three stages with a convolution each: the simplest thing that has stages."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU())
        self.neck = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Conv2d(width, 1, 1)
        self.check = False  # look at values in forward, as torchvision does for degenerate boxes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.backbone(x)
        if self.check and bool((x < -1e9).any()):
            raise ValueError("degenerate")
        return self.head(self.neck(x))


def make_detector(seed: int = 0) -> nn.Module:
    """tiny_fasterrcnn of the zoo."""
    from detscope.zoo.contract import BuildOptions
    from detscope.zoo.registry import build_model

    return build_model("tiny_fasterrcnn", BuildOptions(seed=seed)).module


def make_batch(images: int = 2, size: int = 64, seed: int = 0) -> tuple[list[torch.Tensor], Targets]:
    """Images with two boxes each, as torchvision's detectors take them."""
    drawn = torch.Generator().manual_seed(seed)
    pictures = [torch.rand(3, size, size, generator=drawn) for _ in range(images)]
    boxes = torch.tensor([[4.0, 4.0, 30.0, 30.0], [20.0, 16.0, 60.0, 50.0]])
    return pictures, [{"boxes": boxes.clone(), "labels": torch.tensor([1, 2])} for _ in range(images)]


def move_batch(batch: Any, device: str, non_blocking: bool = True) -> Any:
    """A nested batch on the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        return {key: move_batch(value, device, non_blocking) for key, value in batch.items()}
    return type(batch)(move_batch(value, device, non_blocking) for value in batch)

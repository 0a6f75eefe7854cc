"""A small dense detector whose loss pads the boxes of every image to the most that any image may have."""

from __future__ import annotations

import argparse

import torch
from torch import nn

SIZE, CLASSES, IMAGES, MOST_BOXES = 64, 4, 4, 1000


class DenseDetector(nn.Module):
    """A box and scores for every cell of an 8 by 8 grid."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 16), (16, 24), (24, 32)):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Conv2d(32, 4 + CLASSES, 1)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cells = self.head(self.backbone(images)).flatten(2).transpose(1, 2)
        corners = cells[..., :2].sigmoid() * SIZE / 2
        boxes = torch.cat([corners, corners + 1 + cells[..., 2:4].sigmoid() * SIZE / 2], dim=-1)
        return boxes, cells[..., 4:]


def generalized_box_iou(boxes: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """As torchvision has it, whose import takes longer than all steps."""
    first, second = boxes[:, None], others[None]
    areas = [(one[..., 2:] - one[..., :2]).prod(-1) for one in (first, second)]
    inner, outer = (
        (low(first[..., 2:], second[..., 2:]) - high(first[..., :2], second[..., :2])).clamp(min=0).prod(-1)
        for low, high in ((torch.minimum, torch.maximum), (torch.maximum, torch.minimum))
    )
    union = areas[0] + areas[1] - inner
    return inner / union - (outer - union) / outer


class PaddedLoss(nn.Module):
    """The best cell of every box is pulled towards it."""

    def pad(self, targets: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        most = MOST_BOXES
        padded = torch.zeros(len(targets), most, 4)
        padded[..., 2:] = 1.0
        real = torch.zeros(len(targets), most, dtype=torch.bool)
        for number, boxes in enumerate(targets):
            padded[number, : len(boxes)] = boxes
            real[number, : len(boxes)] = True
        return padded, real

    def forward(
        self, boxes: torch.Tensor, scores: torch.Tensor, targets: list[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        padded, real = self.pad(targets)
        overlap = torch.stack(
            [generalized_box_iou(one, other) for one, other in zip(boxes, padded, strict=True)]
        )
        distance = (boxes[:, :, None] - padded[:, None]).abs().sum(-1)
        best = (overlap - distance / SIZE).amax(dim=1)
        wanted = real.sum(dim=1).clamp(max=CLASSES - 1)
        return {
            "loss_boxes": ((1 - best) * real).sum() / real.sum(),
            "loss_scores": nn.functional.cross_entropy(scores.mean(dim=1), wanted),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, criterion = DenseDetector(), PaddedLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        images = torch.rand(IMAGES, 3, SIZE, SIZE)
        corners = [torch.rand(2 + (step + number) % 5, 2) * SIZE / 2 for number in range(IMAGES)]
        targets = [torch.cat([one, one + 8 + torch.rand_like(one) * 20], dim=1) for one in corners]
        boxes, scores = model(images)
        losses = criterion(boxes, scores, targets)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()


if __name__ == "__main__":
    main()

"""A training as people write it: convolutions in a list that is iterated, a loss that is a function, AMP."""

from __future__ import annotations

import sys
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Random images and one box each."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        return {
            "img": torch.rand(3, 160, 160, generator=generator),
            "bboxes": torch.rand(1, 4, generator=generator),
        }


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn, self.act = nn.BatchNorm2d(outside), nn.SiLU(inplace=True)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.act(self.bn(self.conv(image)))


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64, 128)
        self.model = nn.Sequential(*(Block(*pair, 2) for pair in pairwise(widths)))
        self.detect = nn.Conv2d(128, 5, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        for layer in self.model:  # iterated, never called as a whole
            image = layer(image)
        return self.detect(image)


def compute_loss(found: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    return (found[:, :4].mean((2, 3)) - boxes[:, 0]).abs().mean() + found[:, 4].sigmoid().mean()


def main(device: str) -> None:
    torch.manual_seed(0)
    model = Detector().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device.split(":")[0])
    loss = torch.zeros(())
    for _ in range(2):
        for batch in DataLoader(Images(), 4, num_workers=2, pin_memory=True):
            images, boxes = (batch[key].to(device, non_blocking=True) for key in ("img", "bboxes"))
            with torch.autocast(device.split(":")[0], torch.float16):
                loss = compute_loss(model(images), boxes)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    print(f"trained: {torch.isfinite(loss).item()}")


if __name__ == "__main__":
    main(sys.argv[1])

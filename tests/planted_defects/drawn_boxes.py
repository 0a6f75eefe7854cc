"""What the planted scripts share: a small network for boxes, and drawn images in a loader."""

from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS, SIDE, CLASSES = 14, 64, 3
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Detector(nn.Module):
    """A few blocks and a head: for every cell four numbers of a box and the classes."""

    def __init__(self, blocks=3, activation=nn.ReLU):
        super().__init__()
        widths = [3, 8, *[8] * (blocks - 1)]
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(before, after, 3, stride=2 if index < 3 else 1, padding=1),
                    nn.BatchNorm2d(after),
                    activation(),
                )
                for index, (before, after) in enumerate(pairwise(widths))
            )
        )
        self.head = nn.Conv2d(8, 4 + CLASSES, 1)
        self.to(device)

    def forward(self, images):
        return self.head(self.blocks(images)).flatten(2).transpose(1, 2)


class Drawn(Dataset):
    def __init__(self, transform=None, images=2 * STEPS):
        self.transform, self.images = transform, images

    def __len__(self):
        return self.images

    def __getitem__(self, index):
        dice = torch.Generator().manual_seed(index)
        image = torch.randint(0, 256, (3, SIDE, SIDE), dtype=torch.uint8, generator=dice)
        boxes = torch.rand(3 + index % 3, 4, generator=dice) * 0.4 + 0.1
        return (image if self.transform is None else self.transform(image)), boxes


def collate(items):
    images, boxes = zip(*items, strict=True)
    return torch.stack(images), list(boxes)


def collate_on_device(items):
    images, boxes = collate(items)
    return images.to(device), [one.to(device) for one in boxes]


def make_loader(transform=None, collate_fn=collate_on_device):
    return DataLoader(Drawn(transform), batch_size=2, collate_fn=collate_fn)


def loss_of(output, boxes):
    targets = torch.stack([one.mean(0) for one in boxes])
    return (output[..., :4].mean(1) - targets).abs().sum() + output[..., 4:].square().mean()

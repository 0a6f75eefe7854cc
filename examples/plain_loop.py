"""A training loop as people write it first: no framework, nothing of detscope in it.

detscope run examples/plain_loop.py
"""

import sys

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn


class Squares(Dataset):
    """Noise with one bright square to find."""

    def __init__(self, length, size=128):
        self.length, self.size = length, size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, self.size, self.size, generator=generator)
        left, top = torch.randint(0, self.size // 2, (2,), generator=generator).tolist()
        side = self.size // 4
        image[:, top : top + side, left : left + side] = 1.0
        boxes = torch.tensor([[left, top, left + side, top + side]], dtype=torch.float32)
        return image, {"boxes": boxes, "labels": torch.tensor([1]), "image_id": index}


def collate(samples):
    images, targets = zip(*samples, strict=True)
    return list(images), list(targets)


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 14
    torch.manual_seed(0)
    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=2,
        min_size=128,
        max_size=128,
        box_batch_size_per_image=32,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    loader = DataLoader(Squares(2 * steps), batch_size=2, shuffle=True, collate_fn=collate)

    model.train()
    for step, (images, targets) in enumerate(loader):
        losses = model(images, targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

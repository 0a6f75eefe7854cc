"""A training that saves its whole model after every epoch, as many scripts do: `torch.save(model)`.

detscope run examples/saves_its_model.py model.pt

The file is the same, byte for byte, with detscope and without, and loads where detscope is not installed.
"""

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn


class Discs(Dataset):
    """Noise with one dark disc to find."""

    def __init__(self, length, size=96):
        self.length, self.size = length, size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, self.size, self.size, generator=generator)
        x, y = torch.randint(24, self.size - 24, (2,), generator=generator).tolist()
        rows, columns = torch.meshgrid(torch.arange(self.size), torch.arange(self.size), indexing="ij")
        image[:, (rows - y) ** 2 + (columns - x) ** 2 < 20**2] = 0.0
        boxes = torch.tensor([[x - 20, y - 20, x + 20, y + 20]], dtype=torch.float32)
        return image, {"boxes": boxes, "labels": torch.tensor([1])}


def collate(samples):
    images, targets = zip(*samples, strict=True)
    return list(images), list(targets)


def main():
    file = sys.argv[1] if len(sys.argv) > 1 else "model.pt"
    epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=2,
        min_size=96,
        max_size=96,
        box_batch_size_per_image=32,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    loader = DataLoader(Discs(8), batch_size=2, shuffle=True, collate_fn=collate)

    model.train()
    for epoch in range(epochs):
        for images, targets in loader:
            loss = sum(model(images, targets).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.save(model, f"{file}.part")  # the one of the epoch before stays whole until this one is
        Path(f"{file}.part").replace(file)
        print(f"epoch {epoch}: loss {loss.item():.4f}, saved")


if __name__ == "__main__":
    main()

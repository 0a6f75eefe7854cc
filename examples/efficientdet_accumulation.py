"""EfficientDet with mixed precision, a gradient scaler, averaged weights and accumulated gradients.

detscope run examples/efficientdet_accumulation.py
"""

import copy
import sys

import torch
from effdet import DetBenchTrain, EfficientDet, get_efficientdet_config
from torch.utils.data import DataLoader, Dataset

SIZE = 128
ACCUMULATE = 2


class Blobs(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, SIZE, SIZE, generator=generator)
        boxes = torch.full((4, 4), -1.0)
        classes = torch.full((4,), -1.0)
        for number in range(1 + index % 3):
            corner = torch.randint(0, SIZE // 2, (2,), generator=generator).float()
            boxes[number] = torch.cat([corner, corner + SIZE // 3])
            classes[number] = 1.0
        return image, boxes, classes


class ModelEma:
    """Keeps a moving average of everything in the model's state."""

    def __init__(self, model, decay=0.99):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for kept, new in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            kept.copy_(self.decay * kept + (1.0 - self.decay) * new)


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    torch.manual_seed(0)
    config = get_efficientdet_config("tf_efficientdet_lite0")
    config.image_size, config.num_classes = (SIZE, SIZE), 2
    model = DetBenchTrain(EfficientDet(config, pretrained_backbone=False), config)
    ema = ModelEma(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    loader = DataLoader(Blobs(2 * ACCUMULATE * steps), batch_size=2)

    model.train()
    running = 0.0
    for iteration, (images, boxes, classes) in enumerate(loader):
        targets = {
            "bbox": boxes,
            "cls": classes,
            "img_size": torch.full((len(images), 2), float(SIZE)),
            "img_scale": torch.ones(len(images)),
        }
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(images, targets)
            loss = output["loss"] / ACCUMULATE
        scaler.scale(loss).backward()
        running += loss.item()
        if (iteration + 1) % ACCUMULATE == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            ema.update(model)
            print(f"step {iteration // ACCUMULATE}: loss {running:.3f}")
            running = 0.0


main()

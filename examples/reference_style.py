"""In the style of torchvision's reference scripts: metric logger, warm-up scheduler, evaluation per epoch.

detscope run examples/reference_style.py --epochs 2
"""

import argparse
from collections import defaultdict, deque

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import ssdlite320_mobilenet_v3_large


class SmoothedValue:
    def __init__(self, window_size=20):
        self.values = deque(maxlen=window_size)

    def update(self, value):
        self.values.append(value)

    def __str__(self):
        return f"{sum(self.values) / len(self.values):.4f}"


class MetricLogger:
    def __init__(self, delimiter="  "):
        self.meters = defaultdict(SmoothedValue)
        self.delimiter = delimiter

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].update(value.item() if isinstance(value, torch.Tensor) else value)

    def log_every(self, iterable, print_freq, header):
        for number, item in enumerate(iterable):
            yield item
            if number % print_freq == 0:
                meters = self.delimiter.join(f"{name}: {meter}" for name, meter in self.meters.items())
                print(f"{header} [{number}/{len(iterable)}] {meters}")


class Shapes(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 160, 200, generator=generator)
        corner = torch.randint(0, 80, (1 + index % 3, 2), generator=generator).float()
        return image, {"boxes": torch.cat([corner, corner + 60], 1), "labels": torch.ones(len(corner)).long()}


def collate_fn(batch):
    return tuple(zip(*batch, strict=True))


def train_one_epoch(model, optimizer, data_loader, device, epoch, print_freq):
    model.train()
    metric_logger = MetricLogger()
    lr_scheduler = None
    if epoch == 0:
        warmup = min(1000, len(data_loader) - 1)
        lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=warmup)
    for images, targets in metric_logger.log_every(data_loader, print_freq, f"Epoch: [{epoch}]"):
        images = [image.to(device) for image in images]
        targets = [{k: v.to(device) for k, v in target.items()} for target in targets]
        with torch.autocast("cpu", enabled=False):
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
        optimizer.zero_grad()
        losses.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        if lr_scheduler is not None:
            lr_scheduler.step()
        metric_logger.update(loss=losses, **loss_dict)
        metric_logger.update(lr=optimizer.param_groups[0]["lr"])


@torch.inference_mode()
def evaluate(model, data_loader, device):
    model.eval()
    found = 0
    for images, _targets in data_loader:
        outputs = model([image.to(device) for image in images])
        found += sum(len(output["boxes"]) for output in outputs)
    print(f"Test: {found} boxes")


def main(args):
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=2)
    model.to(device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
    loaders = {
        part: DataLoader(Shapes(images), batch_size=2, num_workers=args.workers, collate_fn=collate_fn)
        for part, images in (("train", 2 * args.steps), ("test", 6))
    }
    for epoch in range(args.epochs):
        train_one_epoch(model, optimizer, loaders["train"], device, epoch, print_freq=4)
        lr_scheduler.step()
        evaluate(model, loaders["test"], device)
    print("Training ended")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Detection training")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("--steps", default=8, type=int, help="per epoch")
    parser.add_argument("--workers", default=1, type=int)
    parser.add_argument("--lr", default=0.005, type=float)
    parser.add_argument("--seed", default=0, type=int)
    main(parser.parse_args())

"""A small SSD whose head is trained, and an average of all weights that is kept tensor by tensor."""

from __future__ import annotations

import argparse
import copy
from functools import partial

import torch
from torch import nn
from torchvision.models import mobilenet_v3_small
from torchvision.models.detection import _utils
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD
from torchvision.models.detection.ssdlite import SSDLiteHead, _mobilenet_extractor

SIZE, CLASSES, IMAGES = 48, 3, 2


class Average:
    """An exponential moving average of a model."""

    def __init__(self, model: nn.Module, decay: float = 0.99) -> None:
        self.decay = decay
        self.kept = copy.deepcopy(model).eval()

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        pairs = zip(self.kept.state_dict().values(), model.state_dict().values(), strict=True)
        for old, new in pairs:
            if old.dtype.is_floating_point:
                old.copy_(self.decay * old + (1 - self.decay) * new.detach())


def build_detector() -> SSD:
    norm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.03)
    features = mobilenet_v3_small(weights=None, norm_layer=norm, width_mult=0.35)
    backbone = _mobilenet_extractor(features, 6, norm).requires_grad_(False)
    anchors = DefaultBoxGenerator([[2, 3] for _ in range(6)], min_ratio=0.2, max_ratio=0.95)
    channels = _utils.retrieve_out_channels(backbone, (SIZE, SIZE))
    head = SSDLiteHead(channels, anchors.num_anchors_per_location(), CLASSES, norm)
    return SSD(backbone, anchors, (SIZE, SIZE), CLASSES, head=head)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build_detector().train()
    model.backbone.eval()  # as it is frozen
    average = Average(model)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.01)
    boxes = torch.tensor([[4.0, 4.0, 30.0, 30.0], [10.0, 10.0, 40.0, 44.0]])
    for _ in range(steps):
        images = list(torch.rand(IMAGES, 3, SIZE, SIZE))
        losses = model(images, [{"boxes": boxes, "labels": torch.tensor([1, 2])} for _ in images])
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)


if __name__ == "__main__":
    main()

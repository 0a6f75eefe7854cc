"""Detectors and nets as a script has them: nothing of detscope in it, each with a batch to learn from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import (
    FCOS,
    FasterRCNN,
    KeypointRCNN,
    MaskRCNN,
    RetinaNet,
    ssdlite320_mobilenet_v3_large,
)
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.ssd import SSD
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

SIZE, CLASSES, CHANNELS = 96, 3, 64
_BOXES = [[8.0, 8.0, 60.0, 60.0], [30.0, 20.0, 90.0, 80.0]]


def _backbone(*, deeper: bool) -> nn.Module:
    body = ResNet(BasicBlock, [1, 1, 1, 1])
    levels = (2, 3, 4) if deeper else (1, 2, 3, 4)
    return BackboneWithFPN(
        body,
        return_layers={f"layer{level}": str(index) for index, level in enumerate(levels)},
        in_channels_list=[64 * 2 ** (level - 1) for level in levels],
        out_channels=CHANNELS,
        extra_blocks=LastLevelP6P7(CHANNELS, CHANNELS) if deeper else None,
    )


def _two_stage(kind: Callable[..., nn.Module], **more: Any) -> nn.Module:
    sizes = ((8,), (16,), (32,), (64,), (128,))
    return kind(
        _backbone(deeper=False),
        CLASSES,
        min_size=SIZE,
        max_size=SIZE,
        rpn_anchor_generator=AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes)),
        rpn_pre_nms_top_n_train=40,
        rpn_post_nms_top_n_train=20,
        rpn_pre_nms_top_n_test=40,
        rpn_post_nms_top_n_test=20,
        box_roi_pool=MultiScaleRoIAlign(["0", "1", "2", "3"], output_size=5, sampling_ratio=2),
        box_head=TwoMLPHead(CHANNELS * 5**2, 1024),
        box_batch_size_per_image=16,
        **more,
    )


def _one_stage(kind: Callable[..., nn.Module], ratios: tuple[float, ...]) -> nn.Module:
    sizes = ((8,), (16,), (32,), (64,), (128,))
    anchors = AnchorGenerator(sizes, (ratios,) * len(sizes))
    return kind(_backbone(deeper=True), CLASSES, min_size=SIZE, max_size=SIZE, anchor_generator=anchors)


class _TwoMaps(nn.Module):
    """What an SSD looks at: two feature maps."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Sequential(nn.Conv2d(3, 16, 3, 8, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.far = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(inplace=True))
        self.out_channels = [16, 32]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        near = self.near(x)
        return {"0": near, "1": self.far(near)}


def _ssd() -> nn.Module:
    anchors = DefaultBoxGenerator([[2], [2]], scales=[0.2, 0.5, 1.0], steps=[8, 16])
    return SSD(_TwoMaps(), anchors, (SIZE, SIZE), CLASSES)


def _efficientdet() -> nn.Module:
    from effdet import DetBenchTrain, EfficientDet, get_efficientdet_config  # half a second: not for all

    config = get_efficientdet_config("efficientdet_lite0")
    config.image_size, config.num_classes = (128, 128), CLASSES
    config.backbone_name, config.backbone_args = "tinynet_e", {}
    config.fpn_channels, config.fpn_cell_repeats, config.box_class_repeats = 32, 1, 1
    config.jit_loss = False
    return DetBenchTrain(EfficientDet(config, pretrained_backbone=False), config)


class OwnNet(nn.Module):
    """A user's net: batch norm, a loss in its own forward, a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 16, 3, 2, 1)
        )
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, CLASSES)

    def pooled(self, x: Tensor) -> Tensor:
        return self.norm(self.features(x)).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pooled(x))


def doubled(net: nn.Module, x: Tensor) -> Tensor:
    """A forward that is put on an instance."""
    return OwnNet.forward(net, x) * 2  # type: ignore[arg-type]


def _patched() -> nn.Module:
    net = OwnNet()
    net.forward = partial(doubled, net)  # type: ignore[method-assign]
    return net


NETS: dict[str, Callable[[], nn.Module]] = {
    "fasterrcnn": partial(_two_stage, FasterRCNN),
    "maskrcnn": partial(_two_stage, MaskRCNN),
    "keypointrcnn": partial(_two_stage, KeypointRCNN, num_keypoints=4),
    "retinanet": partial(_one_stage, RetinaNet, (0.5, 1.0, 2.0)),
    "fcos": partial(_one_stage, FCOS, (1.0,)),
    "ssd": _ssd,
    "ssdlite": partial(
        ssdlite320_mobilenet_v3_large, weights=None, weights_backbone=None, num_classes=CLASSES
    ),
    "efficientdet": _efficientdet,
    "own net": OwnNet,
    "own forward": _patched,
}


def training_loss(name: str, model: nn.Module) -> Tensor:
    """The loss of one batch."""
    images = [torch.rand(3, SIZE, SIZE) for _ in range(2)]
    if name.startswith("own"):
        return model(torch.stack(images)).square().mean()
    if name == "efficientdet":
        targets = {
            "bbox": torch.tensor([_BOXES, _BOXES]),
            "cls": torch.ones(2, 2),
            "img_size": torch.full((2, 2), 128.0),
            "img_scale": torch.ones(2),
        }
        return model(torch.rand(2, 3, 128, 128), targets)["loss"]
    masks, points = torch.ones(2, SIZE, SIZE, dtype=torch.uint8), torch.full((2, 4, 3), 40.0)
    one = {"boxes": torch.tensor(_BOXES), "labels": torch.tensor([1, 2]), "masks": masks, "keypoints": points}
    losses: dict[str, Tensor] = model(images, [dict(one), dict(one)])
    return torch.stack(list(losses.values())).sum()


def example(name: str, model: nn.Module) -> tuple[nn.Module, tuple[Any, ...]]:
    """What a person would export, and what it takes."""
    generator = torch.Generator().manual_seed(1)
    if name == "efficientdet":
        inner: nn.Module = model.model  # type: ignore[assignment]
        return inner, (torch.rand(1, 3, 128, 128, generator=generator),)
    image = torch.rand(3, SIZE, SIZE, generator=generator)
    return model, (image[None],) if name.startswith("own") else ([image],)

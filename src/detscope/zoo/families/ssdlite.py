"""SSDLite of torchvision."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from detscope.zoo.contract import Recipe
from detscope.zoo.families._torchvision import TINY_SIZE, FineTuning, published_card, tiny_card
from detscope.zoo.families.ssd import SsdFamily

if TYPE_CHECKING:
    from torch import nn

_ONE_PIXEL: dict[str, Any] = {
    "min_train_batch": 2,
    "note": "trains with batch 2 or more: its last feature map is one pixel",
}


def _make_tiny(num_classes: int) -> nn.Module:
    from torch import nn
    from torchvision.models.detection._utils import retrieve_out_channels
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.ssd import SSD
    from torchvision.models.detection.ssdlite import SSDLiteHead

    from detscope.zoo.families._tiny_backbones import make_ssdlite_extractor

    norm_layer = partial(nn.BatchNorm2d, eps=0.001, momentum=0.03)
    size = (TINY_SIZE, TINY_SIZE)
    backbone = make_ssdlite_extractor(norm_layer)
    anchors = DefaultBoxGenerator([[2, 3]] * 6, min_ratio=0.15, max_ratio=0.95)
    channels = retrieve_out_channels(backbone, size)
    head = SSDLiteHead(channels, anchors.num_anchors_per_location(), num_classes, norm_layer)
    module: nn.Module = SSD(
        backbone, anchors, size, num_classes, head=head, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return module


PART = SsdFamily(
    name="ssdlite",
    order=70,
    lite=True,
    cards=(
        published_card(
            "ssdlite",
            "ssdlite320_mobilenet_v3_large",
            3_440_060,
            "320",
            Recipe("sgd", 0.003, 4e-5, batch_size=4),
            **_ONE_PIXEL,
        ),
    ),
    fine_tuning={"ssdlite320_mobilenet_v3_large": FineTuning(6, False)},
    tiny=tiny_card("ssdlite", 205_660, str(TINY_SIZE), **_ONE_PIXEL),
    make_tiny=_make_tiny,
)

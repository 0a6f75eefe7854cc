"""FCOS of torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detscope.zoo.families._torchvision import TINY_RESIZED, FineTuning, published_card, tiny_card
from detscope.zoo.families.retinanet import RECIPE, DenseFamily, list_tiny_settings

if TYPE_CHECKING:
    from torch import nn


def _make_tiny(num_classes: int) -> nn.Module:
    from torchvision.models.detection.fcos import FCOS

    sizes = ((8,), (16,), (32,), (64,), (128,))  # one per level, equal to its stride
    module: nn.Module = FCOS(**list_tiny_settings(num_classes, sizes, (1.0,)))
    return module


PART = DenseFamily(
    name="fcos",
    order=50,
    cards=(published_card("fcos", "fcos_resnet50_fpn", 32_269_600, "800-1333", RECIPE),),
    fine_tuning={"fcos_resnet50_fpn": FineTuning(3, True)},
    tiny=tiny_card("fcos", 1_742_122, TINY_RESIZED),
    make_tiny=_make_tiny,
    detector_classes=("torchvision.models.detection.fcos:FCOS",),
)

"""SSD of torchvision, and what SSDLite shares with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detscope.zoo.contract import Recipe, Stage
from detscope.zoo.families import _torchvision as shared
from detscope.zoo.families._torchvision import FineTuning, TorchvisionFamily, published_card, tiny_card
from detscope.zoo.family import name_stages

if TYPE_CHECKING:
    from torch import Tensor, nn

SSD_CLASS = "torchvision.models.detection.ssd:SSD"


@dataclass(frozen=True, kw_only=True)
class SsdFamily(TorchvisionFamily):
    """One predictor for each level of a backbone; SSDLite has the same class and a head of its own."""

    lite: bool = False
    stages: tuple[Stage, ...] = (
        *shared.PREPROCESS,
        *name_stages(("backbone", "backbone")),
        *shared.SINGLE_STAGE,
    )
    class_heads: tuple[str, ...] = ("head.classification_head.module_list.",)
    detector_classes: tuple[str, ...] = (SSD_CLASS,)
    tracing_size: int | None = None

    def is_member(self, module: nn.Module) -> bool:
        """By its head."""
        from torchvision.models.detection.ssdlite import SSDLiteHead

        return isinstance(module.head, SSDLiteHead) == self.lite

    def trace_outputs(self, module: Any, images: Tensor) -> list[Tensor]:
        """Those of all predictors."""
        features = list(module.backbone(images).values())
        return [
            predictor(feature)
            for head in (module.head.classification_head, module.head.regression_head)
            for predictor, feature in zip(head.module_list, features, strict=True)
        ]


def _make_tiny(num_classes: int) -> nn.Module:
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.ssd import SSD

    from detscope.zoo.families._tiny_backbones import SmallVgg

    anchors = DefaultBoxGenerator(
        [[2], [2, 3], [2, 3], [2]], scales=[0.1, 0.2, 0.4, 0.7, 1.0], steps=[8, 16, 32, 64]
    )
    size = (shared.TINY_SIZE, shared.TINY_SIZE)
    module: nn.Module = SSD(SmallVgg(shared.TINY_WIDTH), anchors, size, num_classes)
    return module


PART = SsdFamily(
    name="ssd",
    order=60,
    cards=(
        published_card("ssd", "ssd300_vgg16", 35_641_826, "300", Recipe("sgd", 0.00025, 5e-4, batch_size=4)),
    ),
    fine_tuning={"ssd300_vgg16": FineTuning(4, False, min_image_size=268)},
    tiny=tiny_card("ssd", 1_193_044, str(shared.TINY_SIZE), single_pixel_size=64),
    make_tiny=_make_tiny,
)

"""RetinaNet of torchvision, and what FCOS shares with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detscope.zoo.contract import Recipe, Stage
from detscope.zoo.families import _torchvision as shared
from detscope.zoo.families._torchvision import FineTuning, TorchvisionFamily, published_card, tiny_card

if TYPE_CHECKING:
    from torch import Tensor, nn

RECIPE = Recipe("sgd", 0.00125, 1e-4, clip_gradients=10.0)


@dataclass(frozen=True, kw_only=True)
class DenseFamily(TorchvisionFamily):
    """Two towers of convolutions on every level of a pyramid."""

    stages: tuple[Stage, ...] = (*shared.PREPROCESS, *shared.BACKBONE_WITH_FPN, *shared.SINGLE_STAGE)
    class_heads: tuple[str, ...] = ("head.classification_head.cls_logits.",)

    def trace_outputs(self, module: Any, images: Tensor) -> list[Tensor]:
        """Those of the towers, without the reshaping after them."""
        classes, boxes = module.head.classification_head, module.head.regression_head
        outputs = []
        for feature in module.backbone(images).values():
            outputs.append(classes.cls_logits(classes.conv(feature)))
            tower = boxes.conv(feature)
            outputs.append(boxes.bbox_reg(tower))
            if hasattr(boxes, "bbox_ctrness"):
                outputs.append(boxes.bbox_ctrness(tower))
        return outputs


def list_tiny_settings(num_classes: int, sizes: Any, ratios: tuple[float, ...]) -> dict[str, Any]:
    """What RetinaNet and FCOS are made of when they are tiny; anchor sizes are per level."""
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    from detscope.zoo.families._tiny_backbones import make_resnet_with_fpn

    return {
        "backbone": make_resnet_with_fpn(
            shared.TINY_WIDTH, shared.TINY_CHANNELS, levels=(2, 3, 4), deeper=True
        ),
        "num_classes": num_classes,
        "min_size": shared.TINY_SIZE,
        "max_size": shared.TINY_LONGEST,
        "anchor_generator": AnchorGenerator(sizes, (ratios,) * len(sizes)),
    }


def _make_tiny(num_classes: int) -> nn.Module:
    from torchvision.models.detection.retinanet import RetinaNet

    bases = (12, 24, 48, 96, 160)
    sizes = tuple(tuple(round(base * 2 ** (octave / 3)) for octave in range(3)) for base in bases)
    module: nn.Module = RetinaNet(**list_tiny_settings(num_classes, sizes, shared.TINY_RATIOS))
    return module


PART = DenseFamily(
    name="retinanet",
    order=40,
    cards=(
        published_card("retinanet", "retinanet_resnet50_fpn", 34_014_999, "800-1333", RECIPE),
        published_card("retinanet", "retinanet_resnet50_fpn_v2", 38_198_935, "800-1333", RECIPE),
    ),
    fine_tuning={
        "retinanet_resnet50_fpn": FineTuning(3, True, 0.0),
        "retinanet_resnet50_fpn_v2": FineTuning(3, False),
    },
    tiny=tiny_card("retinanet", 1_782_065, shared.TINY_RESIZED),
    make_tiny=_make_tiny,
    detector_classes=("torchvision.models.detection.retinanet:RetinaNet",),
)

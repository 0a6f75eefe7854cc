"""Mask R-CNN of torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detscope.zoo.families import fasterrcnn
from detscope.zoo.families._torchvision import (
    TINY_CHANNELS,
    TINY_RESIZED,
    FineTuning,
    published_card,
    tiny_card,
)
from detscope.zoo.families.fasterrcnn import ROI_HEADS, RcnnFamily, make_tiny_pool, make_tiny_rcnn
from detscope.zoo.family import name_stages

if TYPE_CHECKING:
    from torch import nn

_MASK_STAGES = name_stages(
    ("roi_heads.mask.pool", "roi_heads.mask_roi_pool"),
    ("roi_heads.mask.head", "roi_heads.mask_head"),
    ("roi_heads.mask.predictor", "roi_heads.mask_predictor"),
    ("roi_heads.mask.loss", f"{ROI_HEADS}:maskrcnn_loss"),
    ("roi_heads.mask.postprocess", f"{ROI_HEADS}:maskrcnn_inference"),
    ("postprocess.paste_masks", "torchvision.models.detection.transform:paste_masks_in_image"),
)


def _make_tiny(num_classes: int) -> nn.Module:
    from torchvision.models.detection.mask_rcnn import MaskRCNN, MaskRCNNHeads, MaskRCNNPredictor

    def make_heads() -> dict[str, nn.Module]:
        return {
            "mask_roi_pool": make_tiny_pool(14),
            "mask_head": MaskRCNNHeads(TINY_CHANNELS, (32, 32), dilation=1),
            "mask_predictor": MaskRCNNPredictor(32, 32, num_classes),
        }

    return make_tiny_rcnn(MaskRCNN, num_classes, make_heads)


PART = RcnnFamily(
    name="maskrcnn",
    order=20,
    cards=(
        published_card(
            "maskrcnn", "maskrcnn_resnet50_fpn", 44_401_393, "800-1333", fasterrcnn.RECIPE, needs=("masks",)
        ),
        published_card(
            "maskrcnn",
            "maskrcnn_resnet50_fpn_v2",
            46_359_409,
            "800-1333",
            fasterrcnn.RECIPE,
            needs=("masks",),
        ),
    ),
    fine_tuning={
        "maskrcnn_resnet50_fpn": FineTuning(3, True, 0.0),
        "maskrcnn_resnet50_fpn_v2": FineTuning(3, False),
    },
    tiny=tiny_card("maskrcnn", 1_699_661, TINY_RESIZED, recipe=fasterrcnn.TINY_RECIPE, needs=("masks",)),
    make_tiny=_make_tiny,
    short_names={"mask-rcnn": "maskrcnn_resnet50_fpn"},
    stages=(*fasterrcnn.STAGES, *_MASK_STAGES),
    class_heads=(*fasterrcnn.BOX_HEADS, "roi_heads.mask_predictor.mask_fcn_logits."),
    detector_class="torchvision.models.detection.mask_rcnn:MaskRCNN",
)

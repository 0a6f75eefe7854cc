"""Mask R-CNN of torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detscope.zoo.families import _torchvision as shared
from detscope.zoo.families import fasterrcnn as rcnn
from detscope.zoo.family import name_stages

if TYPE_CHECKING:
    from torch import nn

_PARAMETERS = {"maskrcnn_resnet50_fpn": 44_401_393, "maskrcnn_resnet50_fpn_v2": 46_359_409}
_MASK_STAGES = name_stages(
    ("roi_heads.mask.pool", "roi_heads.mask_roi_pool"),
    ("roi_heads.mask.head", "roi_heads.mask_head"),
    ("roi_heads.mask.predictor", "roi_heads.mask_predictor"),
    ("roi_heads.mask.loss", f"{rcnn.ROI_HEADS}:maskrcnn_loss"),
    ("roi_heads.mask.postprocess", f"{rcnn.ROI_HEADS}:maskrcnn_inference"),
    ("postprocess.paste_masks", "torchvision.models.detection.transform:paste_masks_in_image"),
)


def _make_tiny(num_classes: int) -> nn.Module:
    from torchvision.models.detection.mask_rcnn import MaskRCNN, MaskRCNNHeads, MaskRCNNPredictor

    def make_heads() -> dict[str, nn.Module]:
        return {
            "mask_roi_pool": rcnn.make_tiny_pool(14),
            "mask_head": MaskRCNNHeads(shared.TINY_CHANNELS, (32, 32), dilation=1),
            "mask_predictor": MaskRCNNPredictor(32, 32, num_classes),
        }

    return rcnn.make_tiny_rcnn(MaskRCNN, num_classes, make_heads)


PART = rcnn.RcnnFamily(
    name="maskrcnn",
    order=20,
    cards=tuple(
        shared.published_card("maskrcnn", name, parameters, "800-1333", rcnn.RECIPE, needs=("masks",))
        for name, parameters in _PARAMETERS.items()
    ),
    fine_tuning={
        "maskrcnn_resnet50_fpn": shared.FineTuning(3, True, 0.0),
        "maskrcnn_resnet50_fpn_v2": shared.FineTuning(3, False),
    },
    tiny=shared.tiny_card(
        "maskrcnn", 1_699_661, shared.TINY_RESIZED, recipe=rcnn.TINY_RECIPE, needs=("masks",)
    ),
    make_tiny=_make_tiny,
    short_names={"mask-rcnn": "maskrcnn_resnet50_fpn"},
    stages=(*rcnn.STAGES, *_MASK_STAGES),
    class_heads=(*rcnn.BOX_HEADS, "roi_heads.mask_predictor.mask_fcn_logits."),
    detector_classes=("torchvision.models.detection.mask_rcnn:MaskRCNN",),
)

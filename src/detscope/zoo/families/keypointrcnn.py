"""Keypoint R-CNN of torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detscope.zoo.families import _torchvision as shared
from detscope.zoo.families import fasterrcnn as rcnn
from detscope.zoo.family import name_stages

if TYPE_CHECKING:
    from torch import nn

_KEYPOINTS = 17
_KEYPOINT_STAGES = name_stages(
    ("roi_heads.keypoint.pool", "roi_heads.keypoint_roi_pool"),
    ("roi_heads.keypoint.head", "roi_heads.keypoint_head"),
    ("roi_heads.keypoint.predictor", "roi_heads.keypoint_predictor"),
    ("roi_heads.keypoint.loss", f"{rcnn.ROI_HEADS}:keypointrcnn_loss"),
    ("roi_heads.keypoint.postprocess", f"{rcnn.ROI_HEADS}:keypointrcnn_inference"),
)


def _make_tiny(num_classes: int) -> nn.Module:
    from torchvision.models.detection.keypoint_rcnn import (
        KeypointRCNN,
        KeypointRCNNHeads,
        KeypointRCNNPredictor,
    )

    def make_heads() -> dict[str, nn.Module]:
        return {
            "keypoint_roi_pool": rcnn.make_tiny_pool(14),
            "keypoint_head": KeypointRCNNHeads(shared.TINY_CHANNELS, (32, 32)),
            "keypoint_predictor": KeypointRCNNPredictor(32, _KEYPOINTS),
        }

    return rcnn.make_tiny_rcnn(KeypointRCNN, num_classes, make_heads)


PART = rcnn.RcnnFamily(
    name="keypointrcnn",
    order=30,
    cards=(
        shared.published_card(
            "keypointrcnn",
            "keypointrcnn_resnet50_fpn",
            59_137_258,
            "640..800-1333",
            rcnn.RECIPE,
            needs=("keypoints",),
            note="17 keypoints per object; the short side is drawn from 640 to 800 in training",
        ),
    ),
    fine_tuning={"keypointrcnn_resnet50_fpn": shared.FineTuning(3, True, 0.0)},
    tiny=shared.tiny_card(
        "keypointrcnn",
        1_704_089,
        shared.TINY_RESIZED,
        recipe=rcnn.TINY_RECIPE,
        needs=("keypoints",),
        note="17 keypoints per object",
    ),
    make_tiny=_make_tiny,
    stages=(*rcnn.STAGES, *_KEYPOINT_STAGES),
    class_heads=rcnn.BOX_HEADS,
    class_count=2,  # of COCO's classes, people alone have keypoints
    detector_classes=("torchvision.models.detection.keypoint_rcnn:KeypointRCNN",),
)

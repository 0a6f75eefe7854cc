"""Stages per family: which modules, methods and functions make up each named part of a detector.

Several targets may share a name: their times belong together. Some parents (`roi_heads.mask`)
exist by name only, as the sum of their parts.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from detscope.zoo.contract import Stage

if TYPE_CHECKING:
    from torch import nn

_ROI_HEADS = "torchvision.models.detection.roi_heads"
_TRANSFORM = "torchvision.models.detection.transform"
_BOX_OPERATIONS = "torchvision.ops.boxes"


def _listed(*pairs: tuple[str, str]) -> tuple[Stage, ...]:
    return tuple(Stage(name, target) for name, target in pairs)


_BACKBONE_WITH_FPN = _listed(("backbone", "backbone.body"), ("fpn", "backbone.fpn"))

_RCNN = (
    *_listed(("preprocess", "transform")),
    *_BACKBONE_WITH_FPN,
    *_listed(
        ("rpn", "rpn"),
        ("rpn.head", "rpn.head"),
        ("rpn.anchors", "rpn.anchor_generator"),
        ("rpn.proposals", "rpn.filter_proposals()"),
        ("rpn.assign", "rpn.assign_targets_to_anchors()"),
        ("rpn.loss", "rpn.compute_loss()"),
        ("roi_heads", "roi_heads"),
        ("roi_heads.sample", "roi_heads.select_training_samples()"),
        ("roi_heads.pool", "roi_heads.box_roi_pool"),
        ("roi_heads.box_head", "roi_heads.box_head"),
        ("roi_heads.box_predictor", "roi_heads.box_predictor"),
        ("roi_heads.loss", f"{_ROI_HEADS}:fastrcnn_loss"),
        ("roi_heads.postprocess", "roi_heads.postprocess_detections()"),
        (".nms", f"{_BOX_OPERATIONS}:batched_nms"),
        ("postprocess", "transform.postprocess()"),
    ),
)

_MASK = _listed(
    ("roi_heads.mask.pool", "roi_heads.mask_roi_pool"),
    ("roi_heads.mask.head", "roi_heads.mask_head"),
    ("roi_heads.mask.predictor", "roi_heads.mask_predictor"),
    ("roi_heads.mask.loss", f"{_ROI_HEADS}:maskrcnn_loss"),
    ("roi_heads.mask.postprocess", f"{_ROI_HEADS}:maskrcnn_inference"),
    ("postprocess.paste_masks", f"{_TRANSFORM}:paste_masks_in_image"),
)

_KEYPOINT = _listed(
    ("roi_heads.keypoint.pool", "roi_heads.keypoint_roi_pool"),
    ("roi_heads.keypoint.head", "roi_heads.keypoint_head"),
    ("roi_heads.keypoint.predictor", "roi_heads.keypoint_predictor"),
    ("roi_heads.keypoint.loss", f"{_ROI_HEADS}:keypointrcnn_loss"),
    ("roi_heads.keypoint.postprocess", f"{_ROI_HEADS}:keypointrcnn_inference"),
)

# Single-stage detectors run non-maximum suppression in one place only. The R-CNNs call the same function
# from two stages: there it is `.nms`, a part of whichever stage is running.
_SINGLE_STAGE = _listed(
    ("head", "head"),
    ("head.classification", "head.classification_head"),
    ("head.regression", "head.regression_head"),
    ("anchors", "anchor_generator"),
    ("loss", "compute_loss()"),
    ("postprocess", "postprocess_detections()"),
    ("postprocess.nms", f"{_BOX_OPERATIONS}:batched_nms"),
    ("postprocess", "transform.postprocess()"),
)

_PREPROCESS = _listed(("preprocess", "transform"))
_WITH_FPN = (*_PREPROCESS, *_BACKBONE_WITH_FPN, *_SINGLE_STAGE)
_WITHOUT_FPN = (*_PREPROCESS, *_listed(("backbone", "backbone")), *_SINGLE_STAGE)

_EFFICIENTDET = _listed(
    ("preprocess", "preprocess()"),
    ("backbone", "model.backbone"),
    ("bifpn", "model.fpn"),
    ("class_net", "model.class_net"),
    ("box_net", "model.box_net"),
    ("loss", "compute_loss()"),
    ("loss.assign", "assign_anchors()"),
    ("postprocess", "postprocess()"),
    ("postprocess.nms", "suppress()"),
)

FAMILY_STAGES: dict[str, tuple[Stage, ...]] = {
    "fasterrcnn": _RCNN,
    "maskrcnn": (*_RCNN, *_MASK),
    "keypointrcnn": (*_RCNN, *_KEYPOINT),
    "retinanet": _WITH_FPN,
    "fcos": _WITH_FPN,
    "ssd": _WITHOUT_FPN,
    "ssdlite": _WITHOUT_FPN,
    "efficientdet": _EFFICIENTDET,
}


def stages_for(family: str, module: nn.Module) -> tuple[Stage, ...]:
    """The family's stages that exist on this model; a family without a list has its top-level children."""
    listed = FAMILY_STAGES.get(family)
    if listed is None:
        return children_as_stages(module)
    kept = tuple(stage for stage in listed if resolves(module, stage.target))
    has_body = any(stage.name == "backbone" for stage in kept)
    if not has_body and resolves(module, "backbone"):  # a backbone of one's own, without body and FPN
        kept = (*kept[:1], Stage("backbone", "backbone"), *kept[1:])
    return kept


def children_as_stages(module: nn.Module) -> tuple[Stage, ...]:
    """One stage per top-level child: what can be said of a model nobody described."""
    return tuple(Stage(name, name) for name, _ in module.named_children())


def resolves(module: nn.Module, target: str) -> bool:
    """Whether a stage's or an observer's target exists on this model."""
    if ":" in target:
        library, _, name = target.partition(":")
        return callable(getattr(importlib.import_module(library), name, None))
    from torch import nn

    found = _attribute(module, target.removesuffix("()"))
    return callable(found) if target.endswith("()") else isinstance(found, nn.Module)


def _attribute(module: nn.Module, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found

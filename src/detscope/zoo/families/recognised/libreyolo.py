"""Detectors of libreyolo, by the names of its classes and the layout of its models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from detscope.zoo.contract import Stage
from detscope.zoo.families.recognised._layout import (
    HYBRID_ENCODER,
    QUERY_DECODER,
    find_parts,
    place_parts,
)
from detscope.zoo.family import Family

Pairs = tuple[tuple[str, str], ...]

_MODELS = "libreyolo.models"
_AROUND: Pairs = (
    ("ema", "libreyolo.training.ema:ModelEMA.update"),
    (".nms", "torchvision.ops.boxes:batched_nms"),
    (".nms", "torchvision.ops.boxes:nms"),
)
_YOLO9: Pairs = (
    ("backbone", "backbone"),
    ("neck", "neck"),
    ("neck.auxiliary", "aux"),
    ("head", "head"),
    ("head.box", "head.cv2.*"),
    ("head.class", "head.cv3.*"),
    ("head.decode", "head._decode_inference()"),
    ("head.auxiliary", "aux_head"),
    ("loss", f"{_MODELS}.yolo9.loss:YOLO9Loss.__call__"),
    ("loss.decode", f"{_MODELS}.yolo9.loss:Vec2Box.__call__"),
    ("assigner", f"{_MODELS}.yolo9.loss:BoxMatcher.__call__"),
    ("loss.class", f"{_MODELS}.yolo9.loss:BCELoss.forward"),
    ("loss.box", f"{_MODELS}.yolo9.loss:BoxLoss.forward"),
    ("loss.dfl", f"{_MODELS}.yolo9.loss:DFLoss.forward"),
    ("preprocess", f"{_MODELS}.yolo9.model:LibreYOLO9._preprocess"),
    ("postprocess", f"{_MODELS}.yolo9.model:LibreYOLO9._postprocess"),
)
_YOLOX: Pairs = (
    ("backbone", "backbone.backbone"),
    ("neck", "backbone"),
    ("head", "head"),
    ("head.stems", "head.stems.*"),
    ("head.class", "head.cls_convs.*"),
    ("head.class", "head.cls_preds.*"),
    ("head.box", "head.reg_convs.*"),
    ("head.box", "head.reg_preds.*"),
    ("head.objectness", "head.obj_preds.*"),
    ("loss", "head.get_losses()"),
    ("assigner", "head.get_assignments()"),
    ("loss.class", "head.bcewithlog_loss"),
    ("loss.box", "head.iou_loss"),
    ("loss.box", "head.l1_loss"),
    ("preprocess", f"{_MODELS}.yolox.model:LibreYOLOX._preprocess"),
    ("postprocess", f"{_MODELS}.yolox.model:LibreYOLOX._postprocess"),
)
_QUERIES: Pairs = (
    ("backbone", "backbone"),
    ("backbone.stem", "backbone.stem"),
    ("backbone.stage_{}", "backbone.stages.*"),
    ("encoder", "encoder"),
    *place_parts("encoder", HYBRID_ENCODER),
    *place_parts("decoder", QUERY_DECODER),
    ("decoder", "decoder"),
)
_DFINE: Pairs = (
    *_QUERIES,
    ("denoising", f"{_MODELS}.dfine.denoising:get_contrastive_denoising_training_group"),
    ("matcher", f"{_MODELS}.dfine.matcher:HungarianMatcher.forward"),
    ("matcher.cost", f"{_MODELS}.dfine.matcher:HungarianMatcher.compute_cost_matrix"),
    ("matcher.indices", f"{_MODELS}.dfine.matcher:HungarianMatcher.solve"),
    ("matcher.assignment", "scipy.optimize:linear_sum_assignment"),
    ("matcher.union", f"{_MODELS}.dfine.loss:DFINECriterion._get_go_indices"),
    ("loss", f"{_MODELS}.dfine.loss:DFINECriterion.forward"),
    ("loss.class", f"{_MODELS}.dfine.loss:DFINECriterion.loss_labels_vfl"),
    ("loss.class", f"{_MODELS}.dfine.loss:DFINECriterion.loss_labels_focal"),
    ("loss.box", f"{_MODELS}.dfine.loss:DFINECriterion.loss_boxes"),
    ("loss.local", f"{_MODELS}.dfine.loss:DFINECriterion.loss_local"),
    ("loss.targets", f"{_MODELS}.dfine.loss:DFINECriterion.get_loss_meta_info"),
    ("preprocess", f"{_MODELS}.dfine.model:LibreDFINE._preprocess"),
    ("postprocess", f"{_MODELS}.dfine.model:LibreDFINE._postprocess"),
)


@dataclass(frozen=True, kw_only=True)
class LibreyoloFamily(Family):
    """The same classes in every size of a model; parts of a backbone and a neck are their own children."""

    pairs: Pairs

    def find_stages(self, module: Any) -> tuple[Stage, ...]:
        """By what the model calls its parts."""
        own = find_parts(module, (*self.pairs, *_AROUND))
        taken = {stage.target for stage in own}
        below = [
            Stage(f"{stage.name}.{name.lower()}", f"{stage.target}.{name}")
            for stage in own
            if stage.name in ("backbone", "neck") and "." not in stage.name
            for name, _ in module.get_submodule(stage.target).named_children()
            if not any(one.startswith(f"{stage.target}.{name}") for one in taken)
        ]
        return (*own, *below)


PARTS = (
    LibreyoloFamily(
        name="libreyolo_yolo9",
        order=320,
        detector_classes=(f"{_MODELS}.yolo9.nn:LibreYOLO9Model",),
        pairs=_YOLO9,
    ),
    LibreyoloFamily(
        name="libreyolo_yolox",
        order=321,
        detector_classes=(f"{_MODELS}.yolox.nn:LibreYOLOXModel",),
        pairs=_YOLOX,
    ),
    LibreyoloFamily(
        name="libreyolo_dfine",
        order=322,
        detector_classes=(f"{_MODELS}.dfine.nn:LibreDFINEModel",),
        pairs=_DFINE,
    ),
)

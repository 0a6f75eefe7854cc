"""YOLOs of Ultralytics' engine, by the names of its classes and the layout of its models; never imported.

A model is a list of layers that is gone through and never called: its first ones are the backbone, as its own
description says, the last one is the head, and what lies between is the neck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from detscope.zoo.contract import Stage
from detscope.zoo.families.recognised._layout import find_parts
from detscope.zoo.family import Family, has_target, name_stages

if TYPE_CHECKING:
    from torch import nn

_LOSS = "ultralytics.utils.loss"
_ASSIGNER = "ultralytics.utils.tal"
_YOLO = "ultralytics.models.yolo"
_ENLARGING = ("Upsample", "ConvTranspose2d")
# what the branches of a head predict, by the attribute that holds them
_BRANCHES = {
    "cv2": "box",
    "cv3": "class",
    "proto": "prototypes",
    "cv4_kpts": "keypoints",
    "cv4_sigma": "sigma",
}
_FOURTH_BRANCH = {"Segment": "masks", "Pose": "keypoints", "OBB": "angle"}

# what the engine does around every model of its own
ENGINE = name_stages(
    ("preprocess", f"{_YOLO}.detect.train:DetectionTrainer.preprocess_batch"),
    ("preprocess", f"{_YOLO}.detect.val:DetectionValidator.preprocess"),
    ("preprocess", "ultralytics.engine.predictor:BasePredictor.preprocess"),
    ("postprocess", f"{_YOLO}.detect.val:DetectionValidator.postprocess"),
    ("postprocess", f"{_YOLO}.detect.predict:DetectionPredictor.postprocess"),
    (".nms", "ultralytics.utils.nms:non_max_suppression"),
    ("ema", "ultralytics.utils.torch_utils:ModelEMA.update"),
)
LOSSES = name_stages(
    ("loss", f"{_LOSS}:v8DetectionLoss.__call__"),
    ("loss", f"{_LOSS}:E2ELoss.__call__"),
    ("loss", f"{_LOSS}:E2EDetectLoss.__call__"),
    ("loss", f"{_LOSS}:v8ClassificationLoss.__call__"),
    ("loss.targets", f"{_LOSS}:v8DetectionLoss.preprocess"),
    ("loss.targets", f"{_LOSS}:v8OBBLoss.preprocess"),
    ("loss.decode", f"{_LOSS}:v8DetectionLoss.bbox_decode"),
    ("loss.decode", f"{_LOSS}:v8OBBLoss.bbox_decode"),
    ("assigner", f"{_ASSIGNER}:TaskAlignedAssigner.forward"),
    (".class", "torch.nn.modules.loss:BCEWithLogitsLoss.forward"),
    ("loss.box", f"{_LOSS}:BboxLoss.forward"),
    ("loss.box", f"{_LOSS}:RotatedBboxLoss.forward"),
    ("loss.dfl", f"{_LOSS}:DFLoss.__call__"),
    ("loss.masks", f"{_LOSS}:v8SegmentationLoss.calculate_segmentation_loss"),
    ("loss.semantic", f"{_LOSS}:BCEDiceLoss.forward"),
    ("loss.keypoints", f"{_LOSS}:v8PoseLoss.calculate_keypoints_loss"),
    ("loss.keypoints", f"{_LOSS}:PoseLoss26.calculate_keypoints_loss"),
    ("loss.angle", f"{_LOSS}:v8OBBLoss.calculate_angle_loss"),
)


def count_backbone(module: Any) -> int:
    """How many of a model's layers are its backbone; without a description, all before it first enlarges."""
    described = getattr(module, "yaml", None)
    if isinstance(described, dict) and isinstance(described.get("backbone"), list):
        return len(described["backbone"])
    kinds = [type(layer).__name__ for layer in module.model]
    return next((index for index, kind in enumerate(kinds) if kind in _ENLARGING), len(kinds) - 1)


def name_backbone(layers: Sequence[nn.Module], border: int) -> tuple[Stage, ...]:
    """Every layer by its number, which is how people who freeze some call them, and its kind."""
    names = (f"backbone.{index}_{type(layers[index]).__name__.lower()}" for index in range(border))
    return tuple(Stage(name, f"model.{index}") for index, name in enumerate(names))


def find_way_down(layers: Sequence[nn.Module], border: int) -> int:
    """The first layer of a neck's way back to smaller maps, before the second join after enlarging."""
    kinds = [type(layer).__name__ for layer in layers]
    head = len(kinds) - 1
    last = max((index for index in range(border, head) if kinds[index] in _ENLARGING), default=head)
    joins = [index for index in range(last, head) if kinds[index] == "Concat"]
    return next((after - 1 for _, after in pairwise(joins)), head)


def name_head(head: nn.Module, path: str) -> tuple[tuple[str, str], ...]:
    """The head and its branches; one that is trained in two ways at once has each of them twice."""
    kinds = [kind.__name__ for kind in type(head).__mro__]
    fourth = next((word for kind, word in _FOURTH_BRANCH.items() if kind in kinds), "class")
    words = {**_BRANCHES, "cv4": fourth}
    twice = getattr(head, "one2one_cv2", None) is not None
    found = [("head", path)]
    for held, child in head.named_children():
        word = words.get(held.removeprefix("one2one_"))
        if word is None:
            continue
        way = "one2one." if held.startswith("one2one_") else "one2many." if twice and held != "proto" else ""
        is_list = type(child).__name__ == "ModuleList"
        found.append((f"head.{way}{word}", f"{path}.{held}.*" if is_list else f"{path}.{held}"))
    return (
        *found,
        ("head.decode", f"{path}._inference()"),
        ("postprocess.top_k", f"{path}.postprocess()"),
    )


@dataclass(frozen=True, kw_only=True)
class UltralyticsFamily(Family):
    """Versions 8 to 26, for boxes, masks, keypoints and oriented boxes."""

    def is_member(self, module: Any) -> bool:
        """A list of layers, of which the last is the head."""
        layers: Any = getattr(module, "model", None)
        return type(layers).__name__ == "Sequential" and len(layers) > 1

    def find_stages(self, module: Any) -> tuple[Stage, ...]:
        """By the numbers of its layers."""
        layers, border = module.model, count_backbone(module)
        down, head = find_way_down(layers, border), len(layers) - 1
        neck = [
            Stage("neck.fusion_down" if index >= down else "neck.fusion_up", f"model.{index}")
            for index in range(border, head)
        ]
        return (
            *name_backbone(layers, border),
            *neck,
            *find_parts(module, name_head(layers[head], f"model.{head}")),
            *(stage for stage in self.stages if has_target(module, stage.target)),
        )


PART = UltralyticsFamily(
    name="ultralytics",
    order=300,
    stages=(*LOSSES, *ENGINE),
    detector_classes=("ultralytics.nn.tasks:BaseModel",),
)

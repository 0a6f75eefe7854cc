"""RT-DETR of Ultralytics' engine, by the names of its classes and the layout of its models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from detscope.zoo.contract import Stage
from detscope.zoo.families.recognised._layout import QUERY_DECODER, find_parts, place_parts
from detscope.zoo.families.recognised.ultralytics import (
    ENGINE,
    UltralyticsFamily,
    count_backbone,
    find_way_down,
    name_backbone,
)
from detscope.zoo.family import has_target, name_stages

_UTILITIES = "ultralytics.models.utils"
_LOSSES = name_stages(
    ("denoising", f"{_UTILITIES}.ops:get_cdn_group"),
    ("matcher", f"{_UTILITIES}.ops:HungarianMatcher.forward"),
    ("matcher.assignment", "ultralytics.utils.ops:linear_sum_assignment"),
    ("matcher.assignment", "scipy.optimize:linear_sum_assignment"),
    ("loss", f"{_UTILITIES}.loss:RTDETRDetectionLoss.forward"),
    ("loss.auxiliary", f"{_UTILITIES}.loss:DETRLoss._get_loss_aux"),
    (".class", f"{_UTILITIES}.loss:DETRLoss._get_loss_class"),
    (".box", f"{_UTILITIES}.loss:DETRLoss._get_loss_bbox"),
    ("postprocess", "ultralytics.models.rtdetr.predict:RTDETRPredictor.postprocess"),
    ("postprocess", "ultralytics.models.rtdetr.val:RTDETRValidator.postprocess"),
)


@dataclass(frozen=True, kw_only=True)
class UltralyticsDetrFamily(UltralyticsFamily):
    """Its layers between backbone and decoder are the hybrid encoder."""

    def find_stages(self, module: Any) -> tuple[Stage, ...]:
        """By the numbers of its layers, and by what its decoder calls its parts."""
        layers, border = module.model, count_backbone(module)
        down, head = find_way_down(layers, border), len(layers) - 1
        encoder = [
            Stage(_name_layer(layers[index], index, border, down), f"model.{index}")
            for index in range(border, head)
        ]
        decoder = place_parts(f"model.{head}", (*QUERY_DECODER, ("postprocess.top_k", "postprocess()")))
        return (
            *name_backbone(layers, border),
            *encoder,
            *find_parts(module, decoder),
            *(stage for stage in self.stages if has_target(module, stage.target)),
        )


def _name_layer(layer: Any, index: int, border: int, down: int) -> str:
    """A layer that takes a map of the backbone alone projects it."""
    source = getattr(layer, "f", None)
    if type(layer).__name__ == "AIFI":
        return "encoder.layers"
    if index == border or (isinstance(source, int) and 0 <= source < border):
        return "input_projection"
    return "encoder.fusion_down" if index >= down else "encoder.fusion_up"


PART = UltralyticsDetrFamily(
    name="ultralytics_rtdetr",
    order=310,
    stages=(*_LOSSES, *ENGINE),
    detector_classes=("ultralytics.nn.tasks:RTDETRDetectionModel",),
)

"""Observers per family: counts read off shapes, so that reading never waits for a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detscope.zoo.contract import Observer
from detscope.zoo.stages import resolves

if TYPE_CHECKING:
    from torch import nn


def _pixels(images: Any) -> Mapping[str, int]:
    """Of a padded batch (`tensors`) that knows the sizes before padding (`image_sizes`)."""
    batch, _, height, width = images.tensors.shape
    return {
        "padded_pixels": int(batch * height * width),
        "network_pixels": sum(int(h) * int(w) for h, w in images.image_sizes),
    }


def _transformed_pixels(output: Any) -> Mapping[str, int]:
    return _pixels(output[0])  # torchvision's transform gives (images, targets)


def _proposals(output: Any) -> Mapping[str, int]:
    return {"proposals": sum(boxes.shape[0] for boxes in output[0])}


def _sampled_rois(output: Any) -> Mapping[str, int]:
    return {"sampled_rois": sum(boxes.shape[0] for boxes in output[0])}


def _detections(output: Any) -> Mapping[str, int]:
    # In training the R-CNNs call postprocess with an empty list: no count, which is not a count of 0.
    if not output:
        return {}
    return {"detections": sum(found["boxes"].shape[0] for found in output)}


_TORCHVISION = (Observer("transform", _transformed_pixels), Observer("transform.postprocess()", _detections))
_RCNN = (
    *_TORCHVISION,
    Observer("rpn", _proposals),
    Observer("roi_heads.select_training_samples()", _sampled_rois),
)
_EFFICIENTDET = (Observer("preprocess()", _pixels), Observer("postprocess()", _detections))

FAMILY_OBSERVERS: dict[str, tuple[Observer, ...]] = {
    "fasterrcnn": _RCNN,
    "maskrcnn": _RCNN,
    "keypointrcnn": _RCNN,
    "retinanet": _TORCHVISION,
    "fcos": _TORCHVISION,
    "ssd": _TORCHVISION,
    "ssdlite": _TORCHVISION,
    "efficientdet": _EFFICIENTDET,
}


def observers_for(family: str, module: nn.Module) -> tuple[Observer, ...]:
    """The family's observers whose target exists on this model."""
    listed = FAMILY_OBSERVERS.get(family, ())
    return tuple(observer for observer in listed if resolves(module, observer.target))

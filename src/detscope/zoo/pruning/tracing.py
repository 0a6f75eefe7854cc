"""What is run to see how channels flow: every layer that trains, with shapes that never depend on data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detscope.errors import InputError
from detscope.zoo.networks.network import Network

if TYPE_CHECKING:
    from torch import Tensor

_Run = Callable[[Any, Any], list[Any]]
_DETECTOR_SIZE = 256  # channels do not depend on it, and small images are quick


def tracing_images(network: Network) -> Tensor:
    """One image for tracing."""
    import torch

    size = network.image_size
    if network.kind == "detector" and _family(network) not in ("ssd", "ssdlite", "efficientdet"):
        size = min(size, _DETECTOR_SIZE)
    return torch.zeros(1, 3, size, size)


def run_for_tracing(network: Network, images: Tensor) -> list[Tensor]:
    """All outputs of the network; a detector's parts are called one by one, without boxes or selection."""
    if network.kind == "detector":
        run: _Run = _FAMILIES.get(_family(network), _unknown)
        return run(network.module, images)
    module: Any = network.module
    # side classifiers run in training only, and only the root asks for it: norms and dropout stay as they are
    module.training = bool(getattr(module, "aux_logits", False))
    output = module(images)
    parts = [output] if hasattr(output, "shape") else list(output)
    return [part for part in parts if part is not None]


def _family(network: Network) -> str:
    from detscope.zoo.user import known_family

    return known_family(network.module)


def _rcnn(module: Any, images: Tensor) -> list[Tensor]:
    features = module.backbone(images)
    outputs = [output for levels in module.rpn.head(list(features.values())) for output in levels]
    heads = module.roi_heads
    outputs += heads.box_predictor(heads.box_head(_pooled(features, heads.box_roi_pool)))
    for kind in ("mask", "keypoint"):
        if getattr(heads, f"{kind}_head", None) is not None:
            pooled = _pooled(features, getattr(heads, f"{kind}_roi_pool"))
            predictor = getattr(heads, f"{kind}_predictor")
            outputs.append(predictor(getattr(heads, f"{kind}_head")(pooled)))
    return outputs


def _pooled(features: dict[str, Tensor], roi_pool: Any) -> Tensor:
    """What RoI pooling means for channels: those of all levels are the same, the size is fixed."""
    from torch.nn.functional import adaptive_avg_pool2d

    levels = [adaptive_avg_pool2d(features[name], roi_pool.output_size) for name in roi_pool.featmap_names]
    total = levels[0]
    for level in levels[1:]:
        total = total + level
    return total


def _dense(module: Any, images: Tensor) -> list[Tensor]:
    """RetinaNet and FCOS: the towers, without the reshaping after them."""
    features = list(module.backbone(images).values())
    classes, boxes = module.head.classification_head, module.head.regression_head
    outputs = []
    for feature in features:
        outputs.append(classes.cls_logits(classes.conv(feature)))
        tower = boxes.conv(feature)
        outputs.append(boxes.bbox_reg(tower))
        if hasattr(boxes, "bbox_ctrness"):
            outputs.append(boxes.bbox_ctrness(tower))
    return outputs


def _ssd(module: Any, images: Tensor) -> list[Tensor]:
    features = list(module.backbone(images).values())
    return [
        predictor(feature)
        for head in (module.head.classification_head, module.head.regression_head)
        for predictor, feature in zip(head.module_list, features, strict=True)
    ]


def _efficientdet(module: Any, images: Tensor) -> list[Tensor]:
    return [output for levels in module.model(images) for output in levels]


def _unknown(module: Any, images: Tensor) -> list[Tensor]:  # noqa: ARG001
    raise InputError(
        f"{type(module).__name__} cannot be pruned: its family is not known, nor where its outputs are",
        "detectors of torchvision's families and EfficientDet can be pruned",
    )


_FAMILIES: dict[str, _Run] = {
    **dict.fromkeys(("fasterrcnn", "maskrcnn", "keypointrcnn"), _rcnn),
    **dict.fromkeys(("retinanet", "fcos"), _dense),
    **dict.fromkeys(("ssd", "ssdlite"), _ssd),
    "efficientdet": _efficientdet,
}

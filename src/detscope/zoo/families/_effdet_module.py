"""EfficientDet as a detector: images and targets in, losses or detections out, each part a method.

effdet gives the network, the anchors, their labelling and the loss. Its own wrappers are scripted
and return padded tensors; here every part runs eagerly, so that its time can be told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from detscope.zoo.families.efficientdet import quiet_effdet

with quiet_effdet():
    from effdet import EfficientDet
    from effdet.anchors import AnchorLabeler, Anchors, decode_box_outputs
    from effdet.loss import DetectionLoss
    from torchvision.ops import boxes as box_operations

_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
_MATCH_THRESHOLD = 0.5
_NMS_THRESHOLD = 0.5
_MIN_SCORE = 0.001

Target = dict[str, Any]


class PreparedImages(NamedTuple):
    """A batch as the network wants it, and how to get back from it."""

    tensors: Tensor  # [N, 3, S, S], normalised and padded
    image_sizes: list[tuple[int, int]]  # height and width of each image inside its square
    scales: list[float]  # network pixels per original pixel
    boxes: list[Tensor]  # targets in network pixels, as y0 x0 y1 x1; empty without targets
    labels: list[Tensor]


class EfficientDetector(nn.Module):
    """An EfficientDet that follows torchvision's contract of detectors."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        config.jit_loss = False  # a scripted loss is one opaque node in the backward pass
        self.image_size = int(config.image_size[0])
        self.num_classes = int(config.num_classes)  # without background
        self.max_candidates = int(config.max_detection_points)
        self.max_detections = int(config.max_det_per_image)
        self.box_loss_weight = float(config.box_loss_weight)
        self.model = EfficientDet(config, pretrained_backbone=False)
        self.anchors = Anchors.from_config(config)
        self.labeler = AnchorLabeler(self.anchors, self.num_classes, match_threshold=_MATCH_THRESHOLD)
        self.loss = DetectionLoss(config)
        # Not in the state dict: files of effdet hold the network alone.
        self.anchors.register_buffer("boxes", self.anchors.boxes, persistent=False)
        mean, std = config.get("mean") or _IMAGENET_MEAN, config.get("std") or _IMAGENET_STD
        self.register_buffer("mean", torch.tensor(tuple(mean)).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(tuple(std)).view(3, 1, 1), persistent=False)

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[Target] | None = None
    ) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Losses in training mode, detections in evaluation mode."""
        if self.training and targets is None:
            raise ValueError("targets should not be none when in training mode")
        prepared = self.preprocess(images, targets if self.training else None)
        class_outputs, box_outputs = self.model(prepared.tensors)
        if self.training:
            return self.compute_loss(class_outputs, box_outputs, prepared)
        return self.postprocess(class_outputs, box_outputs, prepared)

    def preprocess(self, images: Sequence[Tensor], targets: Sequence[Target] | None = None) -> PreparedImages:
        """Normalise, resize into the square keeping the aspect, pad with the mean; boxes follow."""
        size = self.image_size
        mean, std = cast(Tensor, self.mean), cast(Tensor, self.std)
        batch = images[0].new_zeros((len(images), 3, size, size))
        sizes, scales = [], []
        for index, image in enumerate(images):
            height, width = image.shape[-2:]
            scale = min(size / height, size / width)
            fitted = (max(1, int(height * scale)), max(1, int(width * scale)))
            normalised = ((image - mean) / std)[None]
            resized = functional.interpolate(normalised, size=fitted, mode="bilinear", align_corners=False)
            batch[index, :, : fitted[0], : fitted[1]] = resized[0]
            sizes.append(fitted)
            scales.append(scale)
        wanted = targets or ()
        boxes = [
            target["boxes"][:, [1, 0, 3, 2]] * scale for target, scale in zip(wanted, scales, strict=False)
        ]
        return PreparedImages(batch, sizes, scales, boxes, [target["labels"] for target in wanted])

    def assign_anchors(self, prepared: PreparedImages) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Class and box targets per level, and the number of matched anchors per image."""
        with torch.no_grad():
            assigned = self.labeler.batch_label_anchors(prepared.boxes, prepared.labels)
        return cast("tuple[list[Tensor], list[Tensor], Tensor]", assigned)

    def compute_loss(
        self, class_outputs: list[Tensor], box_outputs: list[Tensor], prepared: PreparedImages
    ) -> dict[str, Tensor]:
        """Focal and Huber loss; the box part carries effdet's weight, so that the sum is the total."""
        class_targets, box_targets, positives = self.assign_anchors(prepared)
        _, class_loss, box_loss = self.loss(class_outputs, box_outputs, class_targets, box_targets, positives)
        return {"classification": class_loss, "box_regression": box_loss * self.box_loss_weight}

    def postprocess(
        self, class_outputs: list[Tensor], box_outputs: list[Tensor], prepared: PreparedImages
    ) -> list[dict[str, Tensor]]:
        """Best candidates of all levels, decoded, suppressed, and back in the pixels of each image."""
        logits = _flatten_levels(class_outputs, self.num_classes)
        regressions = _flatten_levels(box_outputs, 4)
        found = []
        for index, (height, width) in enumerate(prepared.image_sizes):
            boxes, scores, labels = self._pick_candidates(logits[index], regressions[index])
            boxes = box_operations.clip_boxes_to_image(boxes, (height, width))
            keep = self.suppress(boxes, scores, labels)[: self.max_detections]
            found.append(
                {
                    "boxes": boxes[keep] / prepared.scales[index],
                    "labels": labels[keep],
                    "scores": scores[keep],
                }
            )
        return found

    def suppress(self, boxes: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
        """Non-maximum suppression per class; indices of what stays, best first."""
        return cast(Tensor, box_operations.batched_nms(boxes, scores, labels, _NMS_THRESHOLD))

    def _pick_candidates(self, logits: Tensor, regressions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = logits.flatten()
        best, position = flat.topk(min(self.max_candidates, flat.numel()))
        scores = best.float().sigmoid()
        likely = scores > _MIN_SCORE
        scores, position = scores[likely], position[likely]
        anchor = position // self.num_classes
        anchor_boxes = cast(Tensor, self.anchors.boxes)[anchor]
        boxes = decode_box_outputs(regressions[anchor].float(), anchor_boxes, output_xyxy=True)
        return boxes, scores, position % self.num_classes + 1


def _flatten_levels(levels: list[Tensor], values: int) -> Tensor:
    """All levels as one [N, anchors, values]."""
    return torch.cat(
        [level.permute(0, 2, 3, 1).reshape(level.shape[0], -1, values) for level in levels], dim=1
    )

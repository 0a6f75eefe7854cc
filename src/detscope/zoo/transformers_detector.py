"""A DETR of transformers as a detector: images and targets in, losses or detections out.

transformers gives the network and its loss; its image processors work on pictures, outside of the model.
Here both ends are methods of a module, on the device the images are on, so that their time can be told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import box_convert

from detscope.zoo.families._transformers_build import Framing

_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)

Target = dict[str, Any]


class FramedImages(NamedTuple):
    """A batch as the network wants it, and how to get back from it."""

    tensors: Tensor  # [N, 3, H, W], normalised where the family does so, padded at the right and below
    mask: Tensor | None  # [N, H, W], 1 where there is an image; None where nothing was padded
    image_sizes: list[tuple[int, int]]  # height and width of each image inside the batch
    scales: Tensor  # [N, 4]: original pixels per unit of the network's boxes, for x, y, x, y
    edges: Tensor  # [N, 4]: where the original image ends, for x, y, x, y
    labels: list[Target] | None  # as transformers wants them; None without targets


class TransformersDetector(nn.Module):
    """A network of transformers that follows torchvision's contract of detectors."""

    def __init__(self, network: nn.Module, framing: Framing) -> None:
        super().__init__()
        self.network = network
        self.framing = framing
        self.image_size = framing.size
        self.loss_weights = _read_loss_weights(network.config)
        mean, std = (_IMAGENET_MEAN, _IMAGENET_STD) if framing.normalised else ((0.0,) * 3, (1.0,) * 3)
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[Target] | None = None
    ) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Losses in training mode, detections in evaluation mode."""
        if self.training and targets is None:
            raise ValueError("targets should not be none when in training mode")
        framed = self.preprocess(images, targets if self.training else None)
        # YOLOS takes no mask, and the others make one of their own where there is nothing to leave out
        more = {} if framed.mask is None or not self.framing.sees_mask else {"pixel_mask": framed.mask}
        outputs = self.network(pixel_values=framed.tensors, labels=framed.labels, **more)
        if self.training:
            return self.name_losses(outputs.loss_dict)
        return self.postprocess(outputs.logits, outputs.pred_boxes, framed)

    def preprocess(self, images: Sequence[Tensor], targets: Sequence[Target] | None = None) -> FramedImages:
        """Normalise and resize: into a square, or with the aspect kept and padded to the largest image."""
        mean, std = cast(Tensor, self.mean), cast(Tensor, self.std)
        sizes = [self.framing.fit_size(*image.shape[-2:]) for image in images]
        frame = (max(height for height, _ in sizes), max(width for _, width in sizes))
        is_padded = any(size != frame for size in sizes)
        batch = images[0].new_zeros((len(images), 3, *frame))
        mask = images[0].new_zeros((len(images), *frame), dtype=torch.long) if is_padded else None
        scales, edges = [], []
        for index, (image, (height, width)) in enumerate(zip(images, sizes, strict=True)):
            normalised = ((image - mean) / std)[None]
            resized = functional.interpolate(
                normalised, (height, width), mode="bilinear", align_corners=False
            )
            batch[index, :, :height, :width] = resized[0]
            if mask is not None:
                mask[index, :height, :width] = 1
            # Boxes are relative to the image where the network sees the mask, to the batch where it does not.
            rows, columns = (1.0, 1.0) if self.framing.sees_mask else (frame[0] / height, frame[1] / width)
            edges.append([float(image.shape[-1]), float(image.shape[-2])] * 2)
            scales.append([image.shape[-1] * columns, image.shape[-2] * rows] * 2)
        scale, edge = torch.tensor([scales, edges], device=batch.device)
        labels = None if targets is None else self._label_targets(targets, scale)
        return FramedImages(batch, mask, sizes, scale, edge, labels)

    def name_losses(self, loss_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Losses of the last layer by name, the others by where they belong; together what it trains on."""
        config: Any = self.network.config
        losses: dict[str, Tensor] = {}
        for name, value in loss_dict.items():
            if not name.startswith("loss_"):  # counts that are kept for looking at
                continue
            kind, place = _place_loss(name, config)
            weighted = value * self.loss_weights.get(kind, 1.0)
            losses[place] = losses[place] + weighted if place in losses else weighted
        return losses

    def postprocess(self, logits: Tensor, boxes: Tensor, framed: FramedImages) -> list[dict[str, Tensor]]:
        """The best classes of the queries, with boxes in the pixels of each image."""
        scores, labels, queries = self.pick_best(logits.float())
        corners = box_convert(boxes.float(), "cxcywh", "xyxy").gather(1, queries[..., None].expand(-1, -1, 4))
        corners = (corners * framed.scales[:, None]).clamp(min=0).minimum(framed.edges[:, None])
        return [
            {"boxes": one, "labels": label, "scores": score}
            for one, label, score in zip(corners, labels, scores, strict=True)
        ]

    def pick_best(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, labels and queries, best first: a class for each query, or the best pairs of both."""
        first = self.framing.first_class
        if self.framing.has_no_object:
            scores, labels = logits.softmax(-1)[..., 1 - first : -1].max(-1)
            scores, queries = scores.sort(descending=True)
            return scores, labels.gather(1, queries) + 1, queries
        logits = logits[..., 1 - first :]  # without background, which has a place and no object
        flat = logits.flatten(1)
        best, places = flat.topk(min(logits.shape[1], flat.shape[1]))
        classes = logits.shape[-1]
        return best.sigmoid(), places % classes + 1, places // classes

    def _label_targets(self, targets: Sequence[Target], scales: Tensor) -> list[Target]:
        return [
            {
                "class_labels": target["labels"] - self.framing.first_class,
                "boxes": box_convert(target["boxes"] / scale, "xyxy", "cxcywh"),
            }
            for target, scale in zip(targets, scales, strict=True)
        ]


def _read_loss_weights(config: Any) -> dict[str, float]:
    """What the losses count where transformers weighs them after it gave them out; else nothing."""
    if not hasattr(config, "bbox_loss_coefficient"):
        return {}
    return {
        "loss_ce": float(getattr(config, "class_loss_coefficient", 1)),
        "loss_bbox": float(config.bbox_loss_coefficient),
        "loss_giou": float(config.giou_loss_coefficient),
    }


def _place_loss(name: str, config: Any) -> tuple[str, str]:
    """Of `loss_bbox_aux_1`: its kind, and what it is summed into."""
    loss, kind, *rest = name.split("_")
    kind = f"{loss}_{kind}"
    if not rest:
        return kind, kind
    if rest[0] == "dn":
        return kind, "denoising"
    # queries that the encoder selected are a layer more than the decoder has
    if rest[0] == "enc" or (rest[0] == "aux" and int(rest[1]) == config.decoder_layers - 1):
        return kind, "encoder"
    return kind, "auxiliary"

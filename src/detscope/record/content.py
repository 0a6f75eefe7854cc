"""What is in a batch: images, boxes, pixels; read from shapes only, so that nothing has to wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BatchContent:
    """Counts of a batch; None where the batch does not look like one of a detector."""

    images: int | None = None
    boxes: int | None = None
    pixels: int | None = None
    image_ids: str = ""


def describe_batch(batch: Any) -> BatchContent:
    """Counts of an `(images, targets)` batch, or of a bare list or tensor of images."""
    images, targets = batch, None
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and not _is_image(batch[0]):
        images, targets = batch
    count, pixels = _images(images)
    boxes, ids = _targets(targets)
    return BatchContent(count, boxes, pixels, ids)


def _is_image(value: Any) -> bool:
    return len(getattr(value, "shape", ())) == 3


def _images(images: Any) -> tuple[int | None, int | None]:
    shape = getattr(images, "shape", None)
    if shape is not None and len(shape) == 4:
        return int(shape[0]), int(shape[0] * shape[2] * shape[3])
    if isinstance(images, (list, tuple)) and images and all(_is_image(image) for image in images):
        return len(images), sum(int(image.shape[-2] * image.shape[-1]) for image in images)
    return None, None


def _targets(targets: Any) -> tuple[int | None, str]:
    if not isinstance(targets, (list, tuple)) or not all(isinstance(t, Mapping) for t in targets):
        return None, ""
    if not all("boxes" in target for target in targets):
        return None, ""
    ids = [target.get("image_id") for target in targets]
    # an id on a device would have to be waited for
    readable = [str(int(i)) for i in ids if isinstance(i, int) or (i is not None and _on_host(i))]
    return sum(len(target["boxes"]) for target in targets), " ".join(readable)


def _on_host(value: Any) -> bool:
    device = getattr(value, "device", None)
    return device is not None and getattr(device, "type", "") == "cpu" and value.numel() == 1

"""What is in a batch: images, boxes, pixels; read from shapes only, so that nothing has to wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
    count = pixels = boxes = None
    ids = ""
    shape: tuple[int, ...] = getattr(images, "shape", None) or ()
    if len(shape) == 4:
        count, pixels = int(shape[0]), int(shape[0] * shape[2] * shape[3])
    elif isinstance(images, (list, tuple)) and images and all(_is_image(image) for image in images):
        count, pixels = len(images), sum(int(image.shape[-2] * image.shape[-1]) for image in images)
    if isinstance(targets, (list, tuple)) and all(isinstance(t, Mapping) and "boxes" in t for t in targets):
        boxes = sum(len(target["boxes"]) for target in targets)
        found = [target.get("image_id") for target in targets]
        ids = " ".join(str(int(one)) for one in found if isinstance(one, int) or _on_host(one))
    return BatchContent(count, boxes, pixels, ids)


def _is_image(value: Any) -> bool:
    return len(getattr(value, "shape", ())) == 3


def _on_host(value: Any) -> bool:
    """One number; on a device it would have to be waited for."""
    return getattr(getattr(value, "device", None), "type", "") == "cpu" and bool(value.numel() == 1)


_BOXES = ("boxes", "bboxes", "bbox", "gt_boxes")


def describe_foreign_batch(batch: Any) -> BatchContent:
    """Counts of a batch; one of a kind that cannot be read has nothing that is known."""
    try:
        found = describe_batch(batch)
        if not (isinstance(batch, (list, tuple)) and batch):
            return found
        if found.images is None:
            images = describe_batch(getattr(batch[0], "tensors", batch[0]))
            found = replace(found, images=images.images, pixels=images.pixels)
        if found.boxes is None and len(batch) > 1:
            found = replace(found, boxes=_count_boxes(batch[1]))
    except Exception:  # whatever a stranger's batch does when it is looked at is no matter of the script
        return BatchContent()
    return found


def _count_boxes(targets: Any) -> int | None:
    """Boxes of a list of dicts (or COCO's lists of them), of one dict of lists, or of a padded tensor."""
    if isinstance(targets, Mapping):
        boxes = _boxes_of(targets)
        listed = isinstance(boxes, (list, tuple))
        return sum(len(of_image) for of_image in boxes) if listed else _count_padded(boxes)
    if not isinstance(targets, (list, tuple)):
        return _count_padded(targets)
    if not targets:
        return None
    if all(isinstance(target, Mapping) for target in targets):
        found = [_boxes_of(target) for target in targets]
        return sum(len(boxes) for boxes in found) if all(hasattr(b, "__len__") for b in found) else None
    if all(isinstance(target, (list, tuple)) for target in targets):
        annotations = [annotation for target in targets for annotation in target]
        if all(isinstance(one, Mapping) and "bbox" in one for one in annotations):
            return len(annotations)
    return None


def _count_padded(boxes: Any) -> int | None:
    """Of a host's tensor of images, boxes and four numbers; one on a device would have to be waited for.

    Rows that are not filled with one number, as padding is; by way of numpy, which no profiler sees.
    """
    shape: tuple[int, ...] = tuple(getattr(boxes, "shape", ()))
    if len(shape) != 3 or shape[-1] != 4 or not getattr(boxes, "is_cpu", False):
        return None
    values = boxes.detach().numpy()
    return int((values.max(-1) != values.min(-1)).sum())


def _boxes_of(target: Mapping[Any, Any]) -> Any:
    return next((target[name] for name in _BOXES if name in target), None)


def add_contents(contents: Iterable[BatchContent]) -> BatchContent:
    """The counts of all batches of a step; None as soon as one is not known."""
    batches = list(contents)
    if not batches:
        return BatchContent()

    def add_known(name: str) -> int | None:
        values = [getattr(one, name) for one in batches]
        return None if None in values else sum(values)

    ids = " ".join(one.image_ids for one in batches if one.image_ids)
    return BatchContent(add_known("images"), add_known("boxes"), add_known("pixels"), ids)

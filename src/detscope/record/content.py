"""What is in a batch: images, boxes, pixels; read from shapes only, so that nothing has to wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    count, pixels = _count_images(images)
    boxes, ids = _count_targets(targets)
    return BatchContent(count, boxes, pixels, ids)


def _is_image(value: Any) -> bool:
    return len(getattr(value, "shape", ())) == 3


def _count_images(images: Any) -> tuple[int | None, int | None]:
    shape = getattr(images, "shape", None)
    if shape is not None and len(shape) == 4:
        return int(shape[0]), int(shape[0] * shape[2] * shape[3])
    if isinstance(images, (list, tuple)) and images and all(_is_image(image) for image in images):
        return len(images), sum(int(image.shape[-2] * image.shape[-1]) for image in images)
    return None, None


def _count_targets(targets: Any) -> tuple[int | None, str]:
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


_BOXES = ("boxes", "bboxes", "bbox", "gt_boxes")


def describe_foreign_batch(batch: Any) -> BatchContent:
    """Counts of a batch; one of a kind that cannot be read has nothing that is known."""
    try:
        return _describe_parts(batch)
    except Exception:  # whatever a stranger's batch does when it is looked at is no matter of the script
        return BatchContent()


def _describe_parts(batch: Any) -> BatchContent:
    found = describe_batch(batch)
    if found.boxes is not None and found.images is not None:
        return found
    parts = batch if isinstance(batch, (list, tuple)) else ()
    if not parts:
        return found
    images = describe_batch(getattr(parts[0], "tensors", parts[0])) if found.images is None else found
    boxes = found.boxes
    if boxes is None and len(parts) > 1:
        boxes = _count_boxes(parts[1])
    return BatchContent(images.images, boxes, images.pixels, found.image_ids)


def _count_boxes(targets: Any) -> int | None:
    """Boxes of a list of dicts (or COCO's lists of them), of one dict of lists, or of a padded tensor."""
    if _is_padded(targets):
        return _count_padded(targets)
    if isinstance(targets, Mapping):
        boxes = _boxes_of(targets)
        if _is_padded(boxes):
            return _count_padded(boxes)
        return sum(len(of_image) for of_image in boxes) if isinstance(boxes, (list, tuple)) else None
    if not isinstance(targets, (list, tuple)) or not targets:
        return None
    if all(isinstance(target, Mapping) for target in targets):
        found = [_boxes_of(target) for target in targets]
        return sum(len(boxes) for boxes in found) if all(hasattr(b, "__len__") for b in found) else None
    if all(isinstance(target, (list, tuple)) for target in targets):
        annotations = [annotation for target in targets for annotation in target]
        if all(isinstance(one, Mapping) and "bbox" in one for one in annotations):
            return len(annotations)
    return None


def _is_padded(boxes: Any) -> bool:
    """A host's tensor of images, boxes and four numbers; one on a device would have to be waited for."""
    shape: tuple[int, ...] = tuple(getattr(boxes, "shape", ()))
    return len(shape) == 3 and shape[-1] == 4 and bool(getattr(boxes, "is_cpu", False))


def _count_padded(boxes: Any) -> int:
    """Rows that are not filled with one number, as padding is; by way of numpy, which no profiler sees."""
    values = boxes.detach().numpy()
    return int((values.max(-1) != values.min(-1)).sum())


def _boxes_of(target: Mapping[Any, Any]) -> Any:
    return next((target[name] for name in _BOXES if name in target), None)


def add_contents(contents: Iterable[BatchContent]) -> BatchContent:
    """The counts of all batches of a step; None as soon as one is not known."""
    all_of_them = list(contents)
    if not all_of_them:
        return BatchContent()

    def add_known(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return BatchContent(
        add_known([one.images for one in all_of_them]),
        add_known([one.boxes for one in all_of_them]),
        add_known([one.pixels for one in all_of_them]),
        " ".join(one.image_ids for one in all_of_them if one.image_ids),
    )

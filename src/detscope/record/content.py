"""What is in a batch: images, boxes, pixels; read from shapes only, so that nothing has to wait.

Images and targets are looked for apart, by the names and forms that detection code gives them. A batch of a
kind that is not known has nothing that is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeGuard

from detscope.record.foreign import raised_by_handler

_IMAGES = ("pixel_values", "img", "imgs", "images", "image", "inputs", "input", "samples", "tensors", "data")
_TARGETS = ("labels", "targets", "target", "annotations", "annotation", "instances", "data_samples")
_BOXES = ("boxes", "bboxes", "bbox", "gt_boxes")
_INSTANCES = ("instances", "gt_instances")
_YOLO_ROW = 6  # image, class, box
_CHANNELS = (1, 3, 4)  # of an image that may have them last
_DEEPEST = 4  # a tuple of arguments, its tuple of images and targets, a list, a target


@dataclass(frozen=True)
class BatchContent:
    """Counts of a batch; None where the batch does not look like one of a detector."""

    images: int | None = None
    boxes: int | None = None
    pixels: int | None = None
    image_ids: str = ""
    padded_pixels: int | None = None  # with their padding, where the batch says what that is


def describe_batch(batch: Any) -> BatchContent:
    """Counts of a batch of any trainer, or of a model's arguments."""
    try:
        images = next(_find_images(batch, 0), None)
        count, pixels, padded = (None, None, None) if images is None else images
        boxes, ids = (None, "") if images is None else _read_targets(batch) or (None, "")
    except (
        Exception
    ) as error:  # whatever a stranger's batch does when it is looked at is no matter of the script
        if raised_by_handler(error):
            raise
        return BatchContent()
    return BatchContent(count, boxes, pixels, ids, padded)


def add_contents(contents: Iterable[BatchContent]) -> BatchContent:
    """The counts of all batches of a step; None as soon as one is not known."""
    batches = list(contents)
    if not batches:
        return BatchContent()

    def add_known(name: str) -> int | None:
        values = [getattr(one, name) for one in batches]
        return None if None in values else sum(values)

    ids = " ".join(one.image_ids for one in batches if one.image_ids)
    counts = add_known("images"), add_known("boxes"), add_known("pixels")
    return BatchContent(*counts, ids, add_known("padded_pixels"))


def _name_values(value: Any) -> Mapping[Any, Any] | None:
    """The named things of a dict, a named tuple, a data class or an object like NestedTensor."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple):
        names: Sequence[str] = getattr(value, "_fields", ())
        return dict(zip(names, value, strict=True)) if names else None
    return None if _shape_of(value) is not None else getattr(value, "__dict__", None)


def _is_record(value: Any) -> bool:
    """Whether its names are the batch's own, and not those of a class that does more than to hold them."""
    return isinstance(value, (Mapping, tuple)) or is_dataclass(value)


def _read_attribute(value: Any, name: str) -> Any:
    """One that it or its class has; a `__getattr__`, which may do anything, is not asked."""
    has = hasattr(type(value), name) or name in getattr(value, "__dict__", ())
    return getattr(value, name) if has else None


def _shape_of(value: Any) -> tuple[int, ...] | None:
    shape = _read_attribute(value, "shape")
    return tuple(shape) if isinstance(shape, Sequence) else None


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple)) and bool(value) and not hasattr(value, "_fields")


def _count_pixels(shape: tuple[int, ...]) -> int:
    """Of one image; channels come first, or last."""
    last = shape[-1] in _CHANNELS and shape[-3] not in _CHANNELS
    return int(shape[-3] * shape[-2] if last else shape[-2] * shape[-1])


# ---- images


def _find_images(value: Any, depth: int) -> Iterator[tuple[int, int, int | None]]:
    """How many images and pixels, and with padding, of what looks most like images first."""
    shape = _shape_of(value)
    if shape is not None:
        if len(shape) == 4:
            yield int(shape[0]), int(shape[0]) * _count_pixels(shape), None
    elif depth < _DEEPEST and _is_list(value):
        shapes = [_shape_of(one) or () for one in value]
        if all(len(one) == 3 for one in shapes):
            yield len(shapes), sum(map(_count_pixels, shapes)), None
            return
        single = [_find_image(one) for one in value]
        known = [one for one in single if one is not None]
        if len(known) == len(value):
            yield len(known), sum(map(_count_pixels, known)), None
        else:
            for one in value:
                yield from _find_images(one, depth + 1)
    elif depth < _DEEPEST and (named := _name_values(value)):
        for name in _IMAGES:
            if name in named:
                images = [named[name]] if len(_shape_of(named[name]) or ()) == 3 else named[name]
                for count, pixels, padded in _find_images(images, depth + 1):
                    own = _count_unpadded(named)
                    yield (count, pixels, padded) if own is None else (count, own, pixels)
        for name in named if _is_record(value) else ():
            yield from _find_images(named[name], depth + 1)


def _find_image(sample: Any) -> tuple[int, ...] | None:
    """The shape of the one image of a sample that nobody collated: a dict, or a tuple that begins with it."""
    named = _name_values(sample)
    if named is None and _is_list(sample):
        named = {_IMAGES[0]: sample[0]}
    for name in _IMAGES:
        shape = _shape_of(named[name]) if named and name in named else None
        if shape is not None and len(shape) == 3:
            return shape
    return None


def _count_unpadded(named: Mapping[Any, Any]) -> int | None:
    """Pixels without padding, where that is said: by sizes, or by a mask that the host holds.

    Such masks pad at the right and at the bottom: a row and a column of each tell its image.
    """
    sizes = named.get("image_sizes")
    if _is_list(sizes) and all(len(size) == 2 for size in sizes):
        return sum(int(height) * int(width) for height, width in sizes)
    # NestedTensor's says what is padding, transformers' says what is not
    mask, real = (named.get("mask"), 0) if "tensors" in named else (named.get("pixel_mask"), 1)
    if len(_shape_of(mask) or ()) != 3 or not getattr(mask, "is_cpu", False):
        return None
    values = _host_values(mask)
    rows, columns = values[:, :, 0] == real, values[:, 0, :] == real
    return int((rows.sum(1) * columns.sum(1)).sum()) if rows[:, 0].all() else None


def _host_values(tensor: Any) -> Any:
    """As numpy's, which no profiler sees."""
    return tensor.detach().numpy()


# ---- targets


def _read_targets(value: Any, depth: int = 0) -> tuple[int, str] | None:
    """How many boxes there are and of which images; None where nothing looks like boxes."""
    if depth > _DEEPEST:
        return None
    if (shape := _shape_of(value)) is not None:
        rows = shape[0] if len(shape) == 2 and shape[1] == _YOLO_ROW else _count_padded(value)
        return None if rows is None else (int(rows), "")
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return _read_listed(value, depth)
    named = _name_values(value) or {}
    boxes = next((named[name] for name in _BOXES if name in named), None)
    count = _count_boxes(boxes)
    for name in _INSTANCES if count is None else ():  # classes of their own, as long as there are boxes
        own = named[name] if name in named else _read_attribute(value, name)
        if isinstance(own, Sized) and not isinstance(own, (list, tuple, Mapping)):
            count = len(own)
    if count is not None:
        return count, _read_id(named.get("image_id"))
    others = [name for name in named if name not in _TARGETS and _shape_of(named[name]) is None]
    for name in (*_TARGETS, *(others if _is_record(value) else ())):
        if name in named and (found := _read_targets(named[name], depth + 1)) is not None:
            return found
    return None


def _read_listed(values: Sequence[Any], depth: int) -> tuple[int, str] | None:
    """Of the targets of every image, all together; else of the first of several things that has any."""
    full = [one for one in values if not isinstance(one, (list, tuple)) or one]
    found = [_read_targets(one, depth + 1) for one in full]
    known = [one for one in found if one is not None]
    if len(known) == len(found) and len({type(one) for one in values}) == 1:
        ids = " ".join(number for _, number in known if number)
        return (sum(count for count, _ in known), ids) if known else None
    return known[0] if known else None


def _count_boxes(boxes: Any) -> int | None:
    """Rows of a tensor, of lists of them, of a padded tensor, of a class of somebody's own."""
    if (shape := _shape_of(boxes)) is not None:
        return int(shape[0]) if len(shape) == 2 else _count_padded(boxes)
    if isinstance(boxes, (list, tuple)):
        if boxes and all(isinstance(number, (int, float)) for number in boxes):
            return 1
        counts = [_count_boxes(one) for one in boxes]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None
    return len(boxes) if isinstance(boxes, Sized) else None


def _count_padded(boxes: Any) -> int | None:
    """Of a host's tensor of images, boxes, and four numbers and perhaps a class.

    Rows that are not filled with one number, as padding is.
    """
    shape = _shape_of(boxes) or ()
    if len(shape) != 3 or shape[-1] not in (4, 5) or not getattr(boxes, "is_cpu", False):
        return None
    values = _host_values(boxes)
    return int((values.max(-1) != values.min(-1)).sum())


def _read_id(value: Any) -> str:
    """One number; on a device it would have to be waited for."""
    if not isinstance(value, int) and not (getattr(value, "is_cpu", False) and value.numel() == 1):
        return ""
    return str(int(value))

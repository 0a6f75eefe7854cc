"""What every annotation format is read into: one record per image, every object judged.

A box must be finite, have a size, and lie inside its image. Overhang of up to one pixel is how the
formats round and is cut off; anything more is a problem: `stop` raises, naming image and annotation,
`skip` drops the annotation (or cuts an overhanging box) and counts it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from detscope.data.annotations.segmentation import BadAnnotationError, Segmentation
from detscope.data.contract import Item, OpenRequest, Problem
from detscope.errors import InputError

ROUNDING_PIXELS = 1.0
HINT = "correct the annotations, or go on without such ones with --on-bad-data skip"

Box = tuple[float, float, float, float]
Size = tuple[int | None, int | None]  # width and height; None: not known
Number = TypeVar("Number", int, int | None)


@dataclass(frozen=True)
class ImageRecord:
    """One image with its annotations; arrays have one row per object."""

    image_id: int
    file_name: str
    width: int | None
    height: int | None
    boxes: npt.NDArray[np.float64]  # [N, 4] xyxy
    labels: npt.NDArray[np.int64]  # [N] from 1
    areas: npt.NDArray[np.float64]  # [N]
    crowd: npt.NDArray[np.int64]  # [N] 0 or 1
    difficult: npt.NDArray[np.int64]  # [N] 0 or 1
    annotation_ids: tuple[int, ...]
    segmentations: tuple[Segmentation, ...] | None  # None: not asked for
    keypoints: npt.NDArray[np.float32] | None  # [N, K, 3]; None: not asked for


@dataclass
class Annotations:
    """All annotations of a data set."""

    classes: tuple[str, ...]  # classes[0] is "background"
    category_ids: tuple[int, ...] = field(repr=False)  # the file's own id of classes[1], classes[2], ...
    records: tuple[ImageRecord, ...] = field(repr=False)
    problems: tuple[Problem, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    keypoint_swap: tuple[int, ...] = field(default=(), repr=False)  # which point one becomes in the mirror


@dataclass(frozen=True)
class ObjectRecord:
    """An object that was read and judged good."""

    box: Box
    label: int
    area: float
    annotation_id: int
    crowd: int = 0
    difficult: int = 0
    segmentation: Segmentation | None = None
    keypoints: npt.NDArray[np.float32] | None = None


class Judge:
    """Judges boxes and remembers what was wrong."""

    def __init__(self, skip_bad: bool) -> None:
        self.problems: list[Problem] = []
        self._skip_bad = skip_bad

    def judge_box(self, box: Box, size: Size, image: str, annotation_id: int) -> Box:
        """The box inside its image; raises BadAnnotationError where nothing of it is left."""
        if not all(math.isfinite(value) for value in box):
            raise BadAnnotationError(f"box {list(box)} has values that are not finite")
        _require_area(box, f"{box[2] - box[0]:g} x {box[3] - box[1]:g}")
        width, height = size
        if width is None or height is None:
            return box
        x1, y1, x2, y2 = box
        overhang = max(-x1, -y1, x2 - width, y2 - height)
        if overhang <= 0:
            return box
        inside = (max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height)))
        _require_area(inside, "no part of it is inside the image")
        if overhang > ROUNDING_PIXELS:
            reason = f"box reaches {overhang:g} pixels beyond the image ({width} x {height})"
            self.report_problem(image, annotation_id, reason, "clipped")
        return inside

    def collect_objects(
        self, image: str, given: Iterable[tuple[Number, Item]], read: Callable[[Number, Item], ObjectRecord]
    ) -> list[ObjectRecord]:
        """Objects of an image that can be used; `given` are their numbers and what `read` makes them of."""
        objects = []
        for number, item in given:
            try:
                objects.append(read(number, item))
            except BadAnnotationError as error:
                self.report_problem(image, number, str(error))
        return objects

    def report_problem(
        self, image: str, annotation_id: int | None, reason: str, action: str = "dropped"
    ) -> None:
        """Something that stops a run, unless such things are to be skipped."""
        if not self._skip_bad:
            where = "" if annotation_id is None else f", annotation {annotation_id}"
            raise InputError(f"image {image}{where}: {reason}", HINT)
        self.note_problem(image, annotation_id, reason, action)

    def note_problem(self, image: str, annotation_id: int | None, reason: str, action: str = "noted") -> None:
        """Something a person should see, and that stops nothing."""
        self.problems.append(Problem(image, annotation_id, reason, action))


def _require_area(box: Box, what: str) -> None:
    """Refuse boxes without area, in the precision the detector sees: a sliver may vanish in float32."""
    if box[2] - box[0] > 0.5 and box[3] - box[1] > 0.5 and box[2] < 1e6 and box[3] < 1e6:
        return  # most boxes; a file may have a million of them
    x1, y1, x2, y2 = np.array(box, dtype=np.float32)
    if not (x2 > x1 and y2 > y1):
        raise BadAnnotationError(f"box has no positive width and height: {what}")


def make_record(
    image_id: int,
    file_name: str,
    size: Size,
    objects: Sequence[ObjectRecord],
    *,
    with_masks: bool = False,
    keypoint_count: int | None = None,
) -> ImageRecord:
    """Put the objects of an image together; `keypoint_count` None: keypoints were not asked for."""
    masks = tuple(one.segmentation for one in objects if one.segmentation is not None)
    points = [one.keypoints for one in objects if one.keypoints is not None]
    return ImageRecord(
        image_id,
        file_name,
        *size,
        np.array([one.box for one in objects], dtype=np.float64).reshape(-1, 4),
        np.array([one.label for one in objects], dtype=np.int64),
        np.array([one.area for one in objects], dtype=np.float64),
        np.array([one.crowd for one in objects], dtype=np.int64),
        np.array([one.difficult for one in objects], dtype=np.int64),
        tuple(one.annotation_id for one in objects),
        masks if with_masks else None,
        None
        if keypoint_count is None
        else np.array(points, dtype=np.float32).reshape(len(points), keypoint_count, 3),
    )


def box_area(box: Box) -> float:
    """Width times height."""
    return (box[2] - box[0]) * (box[3] - box[1])


@dataclass(frozen=True)
class SplitItems(Generic[Item]):
    """The items of a split, those of the other one (for their class names), and what a person should know."""

    items: tuple[Item, ...]
    others: tuple[Item, ...] = ()
    notes: tuple[str, ...] = ()


def divide_items(items: Mapping[str, Item], request: OpenRequest) -> SplitItems[Item]:
    """Items by name, where a data set has no splits of its own: some are held out for evaluation."""
    chosen = draw_names(list(items), request)
    own = tuple(item for name, item in items.items() if name in chosen)
    others = tuple(item for name, item in items.items() if name not in chosen)
    return SplitItems(own, others, (held_out_note(request),))


def draw_names(names: Sequence[str], request: OpenRequest) -> set[str]:
    """The names that belong to a split, the same for the same names.

    Both parts get at least one image where there are two; a single image is in both.
    """
    if len(names) < 2:
        return set(names)
    count = min(len(names) - 1, max(1, round(request.settings.held_out * len(names))))
    hashes = {name: hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16) for name in names}
    held_out = set(sorted(names, key=lambda name: hashes[name].digest())[:count])
    return held_out if request.split == "val" else set(names) - held_out


def held_out_note(request: OpenRequest) -> str:
    """What a person is told about a split of our own making."""
    share = request.settings.held_out
    return f"no split of its own: {share:.0%} of the images, chosen by their names, are kept for evaluation"

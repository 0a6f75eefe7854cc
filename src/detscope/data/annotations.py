"""What every annotation format is read into: one record per image, every object judged.

A box must be finite, have a size, and lie inside its image. Overhang of up to one pixel is how the
formats round and is cut off; anything more is a problem: `stop` raises, naming image and annotation,
`skip` drops the annotation (or cuts an overhanging box) and counts it.

Segmentations are checked in Python first: pycocotools reads uninitialised memory for run lengths that do not
fill the image, and memory without bound for polygons with huge coordinates.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from detscope.data.contract import Item, OpenRequest, Problem
from detscope.errors import InputError
from detscope.limits import read_limit, read_within_limit
from detscope.run_lengths import unpack_run_lengths

LARGEST_SIDE = 1_000_000  # of an image, in pixels; formats end at 65,535
_LARGEST = 2**62
_LONGEST_NAME, _LONGEST_PART = 2000, 255  # what file systems take, in bytes

Mask = npt.NDArray[np.uint8]

ROUNDING_PIXELS = 1.0
HINT = "correct the annotations, or go on without such ones with --on-bad-data skip"

Box = tuple[float, float, float, float]
Size = tuple[int | None, int | None]  # width and height; None: not known
Number = TypeVar("Number", int, int | None)


def parse_whole(value: Any) -> int:
    """A whole number, also as `1.0` or `"1"`; ValueError for anything else: 1.5 is no id."""
    if isinstance(value, str) and len(value) < 20 and value.isascii():
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or abs(value) >= _LARGEST:
        raise ValueError(f"{shorten_value(value)} is not a whole number")
    return value


def parse_number(value: Any) -> float:
    """A number as float; infinity and NaN pass, so that they are told of where they stand."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shorten_value(value)} is not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def require_name(value: Any) -> str:
    """A text that can be printed, and be the name of a file; ValueError for anything else."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shorten_value(value)} is not a name")
    try:
        raw = value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("the name has characters that are none (half of a pair)") from None
    if b"\0" in raw:
        raise ValueError("the name has a NUL in it")
    if len(raw) > _LONGEST_NAME or any(len(part) > _LONGEST_PART for part in raw.split(b"/")):
        raise ValueError("the name is longer than file systems take")
    return value


def leads_out(name: str, start: Path, homes: tuple[Path, ...]) -> bool:
    """Whether a file's name, read from a folder, leads out of all folders of its data set."""
    if not name.startswith("/") and ".." not in name.split("/"):
        return False
    place = Path(os.path.normpath((start / name).absolute()))
    return not any(place.is_relative_to(os.path.normpath(home.absolute())) for home in homes)


def relative_name(path: Path, folder: Path) -> str:
    """The name of a file below a folder; its whole path where it lies elsewhere."""
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def shorten_value(value: Any) -> str:
    """A value in a few characters; of a list or a table its kind alone, for it may be endless."""
    if isinstance(value, list | tuple | dict):
        return "a list" if isinstance(value, list | tuple) else "a table"
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of many digits"
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def read_lines(path: Path, limit_name: str = "label_bytes") -> list[str]:
    """Lines of a text file with something in them."""
    try:
        text = read_within_limit(limit_name, path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text", "save it as UTF-8") from None
    if "\0" in text:
        raise InputError(f"{path}: has NUL characters in it and is not text", "save it as UTF-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


class BadAnnotationError(Exception):
    """Why an annotation cannot be used; becomes a problem of its image."""


@dataclass(frozen=True)
class Segmentation:
    """Either polygons ([x, y, x, y, ...] each) or run lengths with the size they fill."""

    polygons: tuple[npt.NDArray[np.float64], ...] = ()
    run_lengths: bytes = b""
    height: int = 0
    width: int = 0


def parse_segmentation(value: Any) -> Segmentation:
    """Check a `segmentation` value of an annotation file."""
    if isinstance(value, dict):
        return _parse_run_lengths(value)
    if not isinstance(value, list) or not value:
        raise BadAnnotationError("has no segmentation, which this model needs")
    polygons = []
    for given in value:
        try:
            polygon = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise BadAnnotationError("polygon is not a list of numbers") from None
        if polygon.ndim != 1 or len(polygon) < 6 or len(polygon) % 2:
            raise BadAnnotationError("polygon is not a list of at least three x, y pairs")
        if not np.isfinite(polygon).all():
            raise BadAnnotationError("polygon has values that are not finite")
        polygons.append(polygon)
    return Segmentation(polygons=tuple(polygons))


def require_mask_size(segmentation: Segmentation, height: int, width: int) -> None:
    """Run lengths fit one size of image only."""
    if not segmentation.polygons and (segmentation.height, segmentation.width) != (height, width):
        raise BadAnnotationError(
            f"mask is {segmentation.width} x {segmentation.height}, its image {width} x {height}"
        )


def draw_mask(
    segmentation: Segmentation, height: int, width: int, *, shown: tuple[int, int] | None = None
) -> Mask:
    """The mask of one object, 1 inside, [height, width]; `shown` (height, width): drawn in that size."""
    from pycocotools import mask as coco_mask

    require_mask_size(segmentation, height, width)
    to_height, to_width = shown or (height, width)
    encoded: Any = {"size": [height, width], "counts": segmentation.run_lengths}
    if segmentation.polygons:
        # pycocotools walks every pixel of an edge: far corners are pulled to one image size beyond the border
        far = np.array([float(to_width), float(to_height)])
        scale = np.array([to_width / width, to_height / height])
        scaled = (polygon.reshape(-1, 2) * scale for polygon in segmentation.polygons)
        polygons = [np.clip(polygon, -far, 2 * far).ravel().tolist() for polygon in scaled]
        encoded = coco_mask.merge(coco_mask.frPyObjects(polygons, to_height, to_width))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pycocotools' way to make arrays, under numpy 2
        mask: Mask = coco_mask.decode(encoded)
    if mask.shape != (to_height, to_width):  # by the nearest pixel
        rows = ((np.arange(to_height) + 0.5) * mask.shape[0] / to_height).astype(np.intp)
        columns = ((np.arange(to_width) + 0.5) * mask.shape[1] / to_width).astype(np.intp)
        mask = mask[rows][:, columns]
    return mask


def encode_mask(mask: npt.NDArray[np.bool_]) -> Segmentation:
    """Run lengths of a mask [height, width]."""
    from pycocotools import mask as coco_mask

    encoded = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    return Segmentation(run_lengths=encoded["counts"], height=mask.shape[0], width=mask.shape[1])


def export_segmentation(segmentation: Segmentation) -> Any:
    """The value that an annotation file would have: polygons, or a size with run lengths."""
    if segmentation.polygons:
        return [polygon.tolist() for polygon in segmentation.polygons]
    counts = segmentation.run_lengths.decode("ascii")
    return {"size": [segmentation.height, segmentation.width], "counts": counts}


def _parse_run_lengths(value: dict[str, Any]) -> Segmentation:
    from pycocotools import mask as coco_mask

    try:
        height, width = (int(side) for side in value["size"])
        given = value["counts"]
        text = given.encode("ascii") if isinstance(given, str) else given
        packed = isinstance(text, bytes)
        counts = unpack_run_lengths(text).tolist() if packed and text else [int(count) for count in text]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BadAnnotationError("run lengths need a size and counts") from None
    if height * width > read_limit("image_pixels"):
        raise BadAnnotationError(f"mask of {width} x {height} is more than an image may have")
    if height < 1 or width < 1 or any(count < 0 for count in counts) or sum(counts) != height * width:
        raise BadAnnotationError(f"run lengths do not fill their {width} x {height} pixels")
    if not packed:
        text = coco_mask.frPyObjects({"size": [height, width], "counts": counts}, height, width)["counts"]
    return Segmentation(run_lengths=text, height=height, width=width)


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

"""Segmentations of the COCO format (polygons, run lengths) to masks.

They are checked in Python first: pycocotools reads uninitialised memory for run lengths that do not
fill the image, and memory without bound for polygons with huge coordinates.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.data.images import MAX_PIXELS


class SegmentationError(Exception):
    """A segmentation that describes no mask."""


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
        raise SegmentationError("has no segmentation, which this model needs")
    return Segmentation(polygons=tuple(_parse_polygon(polygon) for polygon in value))


def require_size(segmentation: Segmentation, height: int, width: int) -> None:
    """Run lengths fit one size of image only."""
    if not segmentation.polygons and (segmentation.height, segmentation.width) != (height, width):
        raise SegmentationError(
            f"mask is {segmentation.width} x {segmentation.height}, its image {width} x {height}"
        )


def draw_mask(segmentation: Segmentation, height: int, width: int) -> npt.NDArray[np.uint8]:
    """The mask of one object, 1 inside, [height, width]."""
    from pycocotools import mask as coco_mask

    require_size(segmentation, height, width)
    if segmentation.polygons:
        polygons = [_near(polygon, height, width) for polygon in segmentation.polygons]
        encoded = coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))
    else:
        encoded = {"size": [height, width], "counts": segmentation.run_lengths}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pycocotools' way to make arrays, under numpy 2
        mask: npt.NDArray[np.uint8] = coco_mask.decode(encoded)
    return mask


def _near(polygon: npt.NDArray[np.float64], height: int, width: int) -> list[float]:
    """Pull far-away corners to one image size beyond the border; pycocotools walks every pixel of an edge."""
    limits = np.tile([float(width), float(height)], len(polygon) // 2)
    clipped: list[float] = np.clip(polygon, -limits, 2 * limits).tolist()
    return clipped


def _parse_polygon(value: Any) -> npt.NDArray[np.float64]:
    try:
        polygon = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise SegmentationError("polygon is not a list of numbers") from None
    if polygon.ndim != 1 or len(polygon) < 6 or len(polygon) % 2:
        raise SegmentationError("polygon is not a list of at least three x, y pairs")
    if not np.isfinite(polygon).all():
        raise SegmentationError("polygon has values that are not finite")
    return polygon


def _parse_run_lengths(value: dict[str, Any]) -> Segmentation:
    from pycocotools import mask as coco_mask

    try:
        height, width = (int(side) for side in value["size"])
        given = value["counts"]
        text = given.encode("ascii") if isinstance(given, str) else given
        counts = _unpack(text) if isinstance(text, bytes) else [int(count) for count in text]
    except (KeyError, TypeError, ValueError, UnicodeEncodeError):
        raise SegmentationError("run lengths need a size and counts") from None
    if height * width > MAX_PIXELS:
        raise SegmentationError(f"mask of {width} x {height} is more than an image may have")
    if height < 1 or width < 1 or any(count < 0 for count in counts) or sum(counts) != height * width:
        raise SegmentationError(f"run lengths do not fill their {width} x {height} pixels")
    if not isinstance(text, bytes):
        text = coco_mask.frPyObjects({"size": [height, width], "counts": counts}, height, width)["counts"]
    return Segmentation(run_lengths=text, height=height, width=width)


def _unpack(text: bytes) -> list[int]:
    """Run lengths from COCO's compressed form: groups of 5 bits, from the third on as differences."""
    counts: list[int] = []
    value = shift = 0
    for character in text:
        group = character - 48
        if not 0 <= group < 64 or shift > 60:
            raise ValueError("not a run-length text")
        value |= (group & 0x1F) << shift
        shift += 5
        if group & 0x20:
            continue
        if group & 0x10:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("run-length text ends in the middle")
    return counts

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

from detscope.limits import read_limit
from detscope.run_lengths import unpack_run_lengths

Mask = npt.NDArray[np.uint8]


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
    return Segmentation(polygons=tuple(_parse_polygon(polygon) for polygon in value))


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


def _parse_polygon(value: Any) -> npt.NDArray[np.float64]:
    try:
        polygon = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise BadAnnotationError("polygon is not a list of numbers") from None
    if polygon.ndim != 1 or len(polygon) < 6 or len(polygon) % 2:
        raise BadAnnotationError("polygon is not a list of at least three x, y pairs")
    if not np.isfinite(polygon).all():
        raise BadAnnotationError("polygon has values that are not finite")
    return polygon


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

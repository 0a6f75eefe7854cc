"""Masks in COCO's compressed form, checked before pycocotools sees them.

It trusts run lengths: those that do not fill their image make it read and write beyond its memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from detscope.accuracy.records import Integers, RunLengths

_MOST_PIXELS = 2**31


def packed_mask(segmentation: Any) -> RunLengths:
    """A mask of a results file, compressed; raises ValueError with the reason where it is none."""
    try:
        height, width = (int(side) for side in segmentation["size"])
        counts = segmentation["counts"]
    except (KeyError, TypeError, ValueError):
        raise ValueError("needs a size and counts") from None
    if height < 1 or width < 1 or height * width >= _MOST_PIXELS:
        raise ValueError(f"has a size of {width} x {height}")
    if isinstance(counts, list):
        _require_filled(np.array(counts, dtype=np.int64), height, width)
        return run_lengths(segmentation, height, width)
    if not isinstance(counts, str | bytes):
        raise ValueError("counts are no text and no list")
    text = counts.encode("ascii", "replace") if isinstance(counts, str) else counts
    _require_filled(_unpacked(text), height, width)
    return {"size": [height, width], "counts": text}


def run_lengths(segmentation: Any, height: int, width: int) -> RunLengths:
    """Polygons or run lengths of a checked annotation in COCO's compressed form."""
    from pycocotools import mask as coco_mask

    if isinstance(segmentation, list):
        merged: RunLengths = coco_mask.merge(coco_mask.frPyObjects(segmentation, height, width))
        return merged
    if isinstance(segmentation["counts"], list):
        packed: RunLengths = coco_mask.frPyObjects(segmentation, height, width)
        return packed
    return dict(segmentation)


def _unpacked(text: bytes) -> Integers:
    """Run lengths of COCO's text: numbers in groups of five bits, from the fourth on as differences."""
    codes = np.frombuffer(text, dtype=np.uint8).astype(np.int64) - 48
    ends = np.flatnonzero((codes & 0x20) == 0)
    if not len(codes) or codes.min() < 0 or codes.max() >= 64 or not len(ends) or ends[-1] != len(codes) - 1:
        raise ValueError("counts are no run lengths")
    begins = np.append(0, ends[:-1] + 1)
    place = np.arange(len(codes)) - np.repeat(begins, ends - begins + 1)
    if place.max() > 11:
        raise ValueError("counts are no run lengths")
    values = np.add.reduceat((codes & 0x1F) << (5 * place), begins)
    values -= np.where(codes[ends] & 0x10, 1 << (5 * (place[ends] + 1)), 0)
    values[1::2] = np.cumsum(values[1::2])
    values[2::2] = np.cumsum(values[2::2])
    return values


def _require_filled(counts: Integers, height: int, width: int) -> None:
    if counts.ndim != 1 or (counts < 0).any() or int(counts.sum()) != height * width:
        raise ValueError(f"run lengths do not fill {width} x {height} pixels")

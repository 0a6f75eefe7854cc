"""COCO's compressed run lengths, unpacked here: pycocotools trusts them and writes beyond its memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MOST_GROUPS, _LARGEST = 12, 2**32  # of a number: beyond them it is none, and sums would overflow


def unpack_run_lengths(text: bytes) -> npt.NDArray[np.int64]:
    """Numbers in groups of five bits, from the fourth on as differences; ValueError for any other text."""
    codes = np.frombuffer(text, dtype=np.uint8).astype(np.int64) - 48
    ends = np.flatnonzero((codes & 0x20) == 0)
    if not len(codes) or codes.min() < 0 or codes.max() >= 64 or not len(ends) or ends[-1] != len(codes) - 1:
        raise ValueError("counts are no run lengths")
    begins = np.append(0, ends[:-1] + 1)
    place = np.arange(len(codes)) - np.repeat(begins, ends - begins + 1)
    if place.max() >= _MOST_GROUPS:
        raise ValueError("counts are no run lengths")
    values = np.add.reduceat((codes & 0x1F) << (5 * place), begins)
    values -= np.where(codes[ends] & 0x10, 1 << (5 * (place[ends] + 1)), 0)
    if np.abs(values).max() >= _LARGEST:
        raise ValueError("counts are no run lengths")
    values[1::2] = np.cumsum(values[1::2])
    values[2::2] = np.cumsum(values[2::2])
    return values

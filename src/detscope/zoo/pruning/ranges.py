"""Channel numbers as text: `0-3,7,9-12`. Short in a file, and a person can read it."""

from __future__ import annotations

import re

import numpy as np

from detscope.zoo.pruning.layers import Indices

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MOST = 10**7  # channels of a layer; a damaged file must not ask for more memory than the machine has


def to_text(channels: Indices) -> str:
    """Sorted channel numbers as ranges."""
    if not len(channels):
        return ""
    breaks = np.flatnonzero(np.diff(channels) != 1)
    firsts = channels[np.append(0, breaks + 1)].tolist()
    lasts = channels[np.append(breaks, len(channels) - 1)].tolist()
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))


def from_text(text: str) -> Indices:
    """Channel numbers from ranges; ValueError where the text is none, or not in ascending order."""
    parts, before = [], -1
    for piece in text.split(",") if text else []:
        found = _RANGE.fullmatch(piece)
        if found is None:
            raise ValueError(f"{piece[:40]!r} is no range of channels")
        first = int(found[1])
        last = int(found[2]) if found[2] is not None else first
        if not before < first <= last < _MOST:
            raise ValueError(f"channels {piece} are out of order or too many")
        parts.append(np.arange(first, last + 1, dtype=np.int64))
        before = last
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

"""Amounts of memory as people write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?i?b)?", re.IGNORECASE)
_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_LARGEST = 2**62  # beyond it no machine and no system call


def parse_size(text: object) -> int | None:
    """Bytes of `4GiB`, `500 MB` or a plain number; None where it is not a size."""
    if type(text) is int:
        return text if 0 < text < _LARGEST else None
    found = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    unit = _UNITS.get((found[2] or "b").lower()) if found else None
    if found is None or unit is None:
        return None
    size = float(found[1]) * unit
    return round(size) or None if size < _LARGEST else None

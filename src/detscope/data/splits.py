"""Which images are trained on and which are kept for evaluation, where a data set does not say."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from detscope.data.registry import Split

NOTE = "no split of its own: {share:.0%} of the images, chosen by their names, are kept for evaluation"


def part_of(names: Sequence[str], split: Split, held_out: float) -> list[str]:
    """The names that belong to a split; the same for the same names, in the order they are given.

    Both parts get at least one image where there are two; a single image is in both.
    """
    if len(names) < 2:
        return list(names)
    count = min(len(names) - 1, max(1, round(held_out * len(names))))
    kept = set(sorted(names, key=_draw)[:count])
    return [name for name in names if (name in kept) == (split == "val")]


def held_out_note(held_out: float) -> str:
    """What a person is told about a split of our own making."""
    return NOTE.format(share=held_out)


def _draw(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()

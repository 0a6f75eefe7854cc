"""In which order images come: shuffled anew in every pass, in batches, alike in shape where asked for.

Each pass draws one number from the loader's generator, and everything follows from that number: who
seeds the generator before a pass gets the same order and the same views again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from detscope.data.loading.views import ItemKey

if TYPE_CHECKING:
    import torch

# Borders between shapes, as ratios of width to height: portrait, nearly square, landscape.
_SHAPE_BORDERS = (0.5, 2 ** (-1 / 3), 2 ** (1 / 3), 2.0)


@dataclass
class BatchOrder:
    """A batch sampler for torch's loader; each iteration is one pass over the data."""

    images: int
    batch_size: int
    generator: torch.Generator
    shuffle: bool = True
    drop_last: bool = False
    shapes: Sequence[int] | None = None  # the shape of every image; None: batches of all shapes
    keys_with_pass: bool = False  # keys are (number of the pass, image), for views that change by pass
    rank: int = 0  # of `ranks` that draw the same order: each takes every n-th batch, all equally many
    ranks: int = 1

    def __len__(self) -> int:
        return self._count_all_batches() // self.ranks

    def _count_all_batches(self) -> int:
        whole = self.images / self.batch_size
        return math.floor(whole) if self.drop_last else math.ceil(whole)

    def __iter__(self) -> Iterator[list[ItemKey]]:
        import torch

        drawn = int(torch.randint(2**62, (), generator=self.generator))
        order = np.random.default_rng(drawn).permutation(self.images) if self.shuffle else range(self.images)
        indices = [int(index) for index in order]
        if self.shapes is None:
            batches = split_batches(indices, self.batch_size)
        else:
            batches = group_batches(indices, self.batch_size, self.shapes, drawn if self.shuffle else None)
        own = batches[: self._count_all_batches()][self.rank :: self.ranks]
        for batch in own[: len(self)]:
            yield [(drawn, index) for index in batch] if self.keys_with_pass else list(batch)


def split_batches(order: Sequence[int], batch_size: int) -> list[list[int]]:
    """Neighbours in the order, together."""
    return [list(order[start : start + batch_size]) for start in range(0, len(order), batch_size)]


def group_batches(
    order: Sequence[int], batch_size: int, shapes: Sequence[int], drawn: int | None
) -> list[list[int]]:
    """Batches of one shape; what is left over is batched from the flattest on, an incomplete batch last.

    `drawn` shuffles the batches, which would otherwise come in the order in which they filled up.
    """
    waiting: dict[int, list[int]] = {}
    batches: list[list[int]] = []
    for index in order:
        group = waiting.setdefault(shapes[index], [])
        group.append(index)
        if len(group) == batch_size:
            batches.append(waiting.pop(shapes[index]))
    rest = split_batches([index for shape in sorted(waiting) for index in waiting[shape]], batch_size)
    batches += [batch for batch in rest if len(batch) == batch_size]
    if drawn is not None:
        batches = [batches[place] for place in np.random.default_rng([drawn, 1]).permutation(len(batches))]
    return batches + [batch for batch in rest if len(batch) < batch_size]


def classify_shape(width: int, height: int) -> int:
    """A number for the shape of an image: equal for images that pad each other little."""
    return int(np.searchsorted(_SHAPE_BORDERS, width / height))

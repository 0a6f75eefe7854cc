"""A cost of all queries with the boxes of all images, of which each image's own block alone is taken.

It is a matrix [images * queries, boxes of all images], also where it has three dimensions. Whatever view is
taken of it, by splitting, slicing or selecting in any order, shows by its offset and strides which rows and
columns it has: blocks that go down as stairs do, each from the column where the one before ended, to the
last column, are those of images; an image without boxes has none. Copies, such as one to the host, are
matrices of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener, PatternFind
from detscope.record.census.places import tensors_of
from detscope.record.census.sites import Site

_COPIES = ("aten::_to_copy", "aten::clone", "aten::copy_")
_Corner = tuple[int, int]  # row and column


class _Cost(NamedTuple):
    """A matrix, where it was computed, and the smallest block that was taken from each corner on."""

    rows: int
    columns: int
    site: Site
    blocks: dict[_Corner, _Corner]

    def take(self, view: torch.Tensor) -> int:
        """How many images there are, if with this view each has its block; else 0."""
        block = self._find_block(view)
        if block is None:
            return 0
        begin, end = block
        if end != (self.rows, self.columns) or begin != (0, 0):
            self.blocks[begin] = min(end, self.blocks.get(begin, end))
        last, count, high = (0, 0), 0, 0
        while last[1] < self.columns:
            next_one = min((one for one in self.blocks if one[1] == last[1] and one >= last), default=None)
            if next_one is None:
                return 0
            last, count = self.blocks[next_one], count + 1
            high = max(high, last[0] - next_one[0])
        return self.rows // high if count > 1 and high > 1 else 0

    def _find_block(self, view: torch.Tensor) -> tuple[_Corner, _Corner] | None:
        row, column = divmod(int(view.storage_offset()), self.columns)
        high, wide = 1, 1
        for size, stride in zip(view.shape, view.stride(), strict=True):
            if size > 1 and stride % self.columns == 0:
                high += (size - 1) * (stride // self.columns)
            elif size > 1:
                wide += (size - 1) * stride
        is_block = high * wide == view.numel() and column + wide <= self.columns
        return ((row, column), (row + high, column + wide)) if is_block else None


def listen() -> Listener:
    """Costs by their memory: what is taken of them is known within a step."""
    costs: dict[int, _Cost] = {}

    def hear(heard: HeardOperator) -> PatternFind | None:
        if heard.is_view:
            cost = costs.get(_memory_of(heard.args[0]))
            counts = [cost.take(view) for view in tensors_of(heard.output)] if cost is not None else []
            images = max(counts, default=0)
            if cost is None or not images:
                return None
            del costs[_memory_of(heard.args[0])]  # it is told once
            return _describe(cost, images, heard.args[0].element_size())
        made = heard.output
        if type(made) is torch.Tensor and made.dim() in (2, 3) and made.is_floating_point():
            site = heard.site
            if heard.name in _COPIES:
                known = costs.get(_memory_of(heard.args[0]))
                site = site if known is None else known.site
            costs.pop(_memory_of(made), None)  # what lay there before
            columns = made.shape[-1]
            if columns > 1 and made.is_contiguous() and made.storage_offset() == 0 and _is_computed(heard):
                costs[_memory_of(made)] = _Cost(made.numel() // columns, columns, site, {})
        return None

    return hear


def _is_computed(heard: HeardOperator) -> bool:
    """What a factory made is there to be written to."""
    return any(True for _ in tensors_of(heard.args)) and not heard.name.startswith("aten::new_")


def _memory_of(tensor: object) -> int:
    return tensor.untyped_storage().data_ptr() if type(tensor) is torch.Tensor else 0


def _describe(cost: _Cost, images: int, itemsize: int) -> PatternFind:
    made, size = cost.site.line, cost.rows * cost.columns * itemsize
    shape = f"{images}x{cost.rows // images}x{cost.columns}"
    detail = f"images={images} shape={shape} made={made.file}:{made.line}".replace("\n", "")
    return PatternFind("diagonal", "blocks of a cost", detail, size * (images - 1) // images)


PART = CensusPattern("diagonal", listen)

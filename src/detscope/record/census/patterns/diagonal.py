"""A cost [images, queries, boxes of all images] of which the i-th image's own boxes alone are taken.

Two forms are followed, on the device and on the host: pieces of a split along the last dimension, of the
i-th of which image i is taken; and image i of the whole, of which columns are taken where those of image
i-1 ended.
Tensors are known by their memory and shape, as each view of them may come as another object.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener, PatternFind
from detscope.record.census.sites import Site

_Place = tuple[int, int, tuple[int, ...]]
_COPIES = ("aten::_to_copy", "aten::clone", "aten::copy_")


class _Cost:
    """A tensor of three dimensions, and what was taken of it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.itemsize = tuple(tensor.shape), tensor.element_size()
        self.memory = tensor.untyped_storage().data_ptr()
        self.columns: dict[int, tuple[int, int]] = {}  # taken of each image
        self.told = False

    def take(self, image: int, begin: int, end: int) -> bool:
        """Whether with these columns every image has its own, and all columns are taken."""
        self.columns[image] = (begin, end)
        if self.told or len(self.columns) < self.shape[0]:
            return False
        edges = [self.columns.get(one, (-1, -1)) for one in range(self.shape[0])]
        begins, ends = [begin for begin, _ in edges], [end for _, end in edges]
        self.told = begins == [0, *ends[:-1]] and ends[-1] == self.shape[2]
        return self.told


class _Costs:
    def __init__(self) -> None:
        self._pieces: dict[_Place, tuple[_Cost, dict[int, tuple[int, int]]]] = {}  # images: their columns
        self._images: dict[_Place, tuple[_Cost, int]] = {}
        self._wholes: dict[int, dict[_Place, _Cost]] = {}  # by their memory
        self._made: dict[int, Site] = {}  # where memory was computed

    def hear(self, heard: HeardOperator) -> PatternFind | None:
        """Follow the operators that make, cut and take."""
        if not heard.is_view:
            self._note_making(heard)
            return None
        tensor = heard.args[0]
        if heard.name in ("aten::split_with_sizes", "aten::split"):
            self._note_pieces(tensor, heard.output, heard.args)
        elif heard.name == "aten::select":
            return self._take_image(tensor, heard)
        elif heard.name == "aten::slice":
            return self._take_columns(tensor, heard)
        return None

    def _note_making(self, heard: HeardOperator) -> None:
        made = heard.output
        if type(made) is torch.Tensor and made.dim() in (2, 3):
            site, memory = heard.site, made.untyped_storage().data_ptr()
            if heard.name in _COPIES:
                site = self._made.get(heard.args[0].untyped_storage().data_ptr(), site)
            self._made[memory] = site
            self._wholes.pop(memory, None)  # of what lay there before

    def _note_pieces(self, tensor: torch.Tensor, pieces: Any, args: tuple[Any, ...]) -> None:
        dim = args[2] if len(args) > 2 else 0
        if tensor.dim() != 3 or dim % 3 != 2 or len(pieces) != tensor.shape[0] or not _is_many(tensor):
            return
        cost, begin = _Cost(tensor), 0
        places: dict[_Place, dict[int, tuple[int, int]]] = {}
        for image, piece in enumerate(pieces):
            end = begin + piece.shape[2]
            places.setdefault(_place_of(piece), {})[image] = (begin, end)
            begin = end
        self._pieces |= {place: (cost, images) for place, images in places.items()}

    def _take_image(self, tensor: torch.Tensor, heard: HeardOperator) -> PatternFind | None:
        if tensor.dim() != 3 or heard.args[1] != 0:
            return None
        image = heard.args[2] % tensor.shape[0]
        place = _place_of(tensor)
        if place in self._pieces:
            cost, images = self._pieces[place]
            begin, end = images.get(image, (-1, -1))
            return self._tell(cost, heard) if cost.take(image, begin, end) else None
        if _is_many(tensor):
            whole = self._wholes.setdefault(place[0], {}).setdefault(place, _Cost(tensor))
            self._images[_place_of(heard.output)] = (whole, image)
        return None

    def _take_columns(self, tensor: torch.Tensor, heard: HeardOperator) -> PatternFind | None:
        known = self._images.get(_place_of(tensor)) if tensor.dim() == 2 else None
        dim, begin, end = (*heard.args[1:4], None, None, None)[:3]
        if known is None or dim not in (1, -1):
            return None
        cost, image = known
        begin, end = max(begin or 0, 0), min(math.inf if end is None else end, tensor.shape[1])
        return self._tell(cost, heard) if cost.take(image, begin, int(end)) else None

    def _tell(self, cost: _Cost, heard: HeardOperator) -> PatternFind:
        images, rows, columns = cost.shape
        made = self._made.get(cost.memory, heard.site).line
        wasted = (images - 1) * rows * columns * cost.itemsize
        detail = f"images={images} shape={images}x{rows}x{columns} made={made.file}:{made.line}"
        return PatternFind("diagonal", "blocks of a cost", detail.replace("\n", ""), wasted)


def _place_of(tensor: torch.Tensor) -> _Place:
    return tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()), tuple(tensor.shape)


def _is_many(tensor: torch.Tensor) -> bool:
    """Whether there are several images, and boxes."""
    return tensor.shape[0] > 1 and tensor.shape[2] > 0


def listen() -> Listener:
    """What is taken of a cost is known within a step."""
    return _Costs().hear


PART = CensusPattern("diagonal", listen)

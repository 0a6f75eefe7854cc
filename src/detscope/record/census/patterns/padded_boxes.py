"""Boxes of a batch in one tensor: how many of its rows are boxes, and how many fill it up."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener, PatternFind
from detscope.record.census.places import tensors_of
from detscope.record.census.sites import Site
from detscope.record.census.written_calls import find_calls

KIND = "padding"
_FROM_LOADER = "rows of boxes from a loader"
_MAKERS = ("zeros", "full", "ones", "new_zeros", "new_full", "new_ones", "empty", "pad_sequence", "pad")
_FACTORIES = {"aten::zeros": 0.0, "aten::new_zeros": 0.0, "aten::ones": 1.0, "aten::new_ones": 1.0}
_FACTORIES |= {"aten::zero_": 0.0}  # of what was empty
_FILLED = ("aten::full", "aten::new_full", "aten::fill_")
_JOINED = ("aten::stack", "aten::cat", "aten::pad_sequence")  # of images that were filled up before
_COLUMNS = range(4, 9)  # of a box: corners, a class, an image, a score
_MOST_ROWS = 2000  # more are anchors
_MOST_WATCHED = 64
_MOST_CALLS = 40


class _Candidate(NamedTuple):
    """A tensor that may become boxes."""

    tensor: weakref.ref[torch.Tensor]
    fill: float | None  # None: what its rows end with
    site: Site
    storage: int


def listen() -> Listener:
    """A tensor [images, rows, columns] is looked at when it is first read: boxes come first in an image."""
    watched: list[_Candidate] = []
    known: set[int] = set()  # storages that were made in this step, or looked at

    def hear_loaded(operator: HeardOperator) -> PatternFind | None:
        """A tensor that no operator of the step has made was in the batch: loading is not listened to."""
        for one in tensors_of(operator.args):
            storage = _storage_of(one)
            if storage not in known and one.is_cpu and _may_hold_boxes(one):  # on a device: a constant
                known.add(storage)
                find = _describe(one, None, operator.site)
                return None if find is None else find._replace(what=_FROM_LOADER)
        return None

    def hear(operator: HeardOperator) -> PatternFind | None:
        find = hear_loaded(operator)
        known.update(map(_storage_of, tensors_of(operator.output)))
        return hear_made(operator) if find is None else find

    def hear_made(operator: HeardOperator) -> PatternFind | None:
        fill, made = _fill_of(operator), operator.output
        if fill is not None or (operator.name in _JOINED and _may_hold_boxes(made)):
            if len(watched) < _MOST_WATCHED and _may_hold_boxes(made):
                watched.append(_Candidate(weakref.ref(made), fill, operator.site, _storage_of(made)))
            return None
        if not watched or operator.is_view or operator.name.endswith("_"):
            return None
        storages = {_storage_of(one) for one in tensors_of(operator.args)}
        place = next((at for at, one in enumerate(watched) if one.storage in storages), None)
        if place is None:
            return None
        read = watched.pop(place)  # by its place: references are equal where their tensors are
        tensor = read.tensor()
        return None if tensor is None else _describe(tensor, read.fill, read.site)

    return hear


def tell_facts() -> dict[str, Any]:
    """Where the script's own files make what may be filled up: a loader's work is no operator of the step."""
    calls = find_calls(_MAKERS, own_only=True)
    return {"calls": sorted(calls, key=lambda one: "collate" not in one["function"].lower())[:_MOST_CALLS]}


def _fill_of(operator: HeardOperator) -> float | None:
    if operator.name in _FILLED:
        value = operator.args[-1]
        return float(value) if isinstance(value, (int, float)) else None
    return _FACTORIES.get(operator.name)


def _may_hold_boxes(tensor: torch.Tensor) -> bool:
    fits = tensor.dim() == 3 and tensor.shape[2] in _COLUMNS and 1 < tensor.shape[1] <= _MOST_ROWS
    return fits and type(tensor) is torch.Tensor


def _storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if type(tensor) is torch.Tensor else 0


def _find_fill(boxes: torch.Tensor) -> torch.Tensor | None:
    """The row that an image ends with twice: no two boxes are the same."""
    twice = (boxes[:, -1] == boxes[:, -2]).all(-1)
    return boxes[int(twice.int().argmax()), -1] if twice.any() else None


def _describe(tensor: torch.Tensor, fill_value: float | None, site: Site) -> PatternFind | None:
    detail = f"shape={'x'.join(map(str, tensor.shape))}"
    if tensor.is_cpu:  # on a device it would be a wait of ours
        with _disable_current_modes():
            boxes = tensor.detach()
            fill = fill_value if fill_value is not None else _find_fill(boxes)
            if fill is None:
                return None
            is_box = (boxes != fill).any(-1)
            counts = is_box.sum(1)
            filled, largest = int(counts.sum()), int(counts.max())
            first = torch.arange(is_box.shape[1]) < counts[:, None]
            if not filled or not torch.equal(is_box, first):
                return None  # no boxes that are padded
        detail += f" boxes={filled} largest={largest}"
    return PatternFind(KIND, "rows of boxes", detail, tensor.numel() * tensor.element_size(), site)


PART = CensusPattern("padded_boxes", listen, facts=tell_facts)

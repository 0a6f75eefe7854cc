"""A matrix of all pairs of which the diagonal alone is taken: every row belongs to one partner only.

It was made by an operator of this step, and no other operator has read it by then.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _disable_current_modes

from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener, PatternFind
from detscope.record.census.places import tensors_of
from detscope.record.census.sites import Site

KIND = "pairs"
_TAKES = ("aten::diagonal_copy", "aten::diagonal", "aten::diag", "aten::trace")


def listen() -> Listener:
    """Square matrices by their memory, with where they were computed; what is read is forgotten."""
    squares: dict[int, Site] = {}

    def hear(heard: HeardOperator) -> PatternFind | None:
        if heard.phase == "backward":
            return None
        if heard.name in _TAKES or _indexes_diagonal(heard):
            made = squares.pop(_memory_of(heard.args[0]), None)
            return None if made is None or _is_beside(heard) else _describe(heard.args[0], made)
        if not heard.is_view:
            for tensor in tensors_of((heard.args, heard.kwargs)):
                squares.pop(_memory_of(tensor), None)
            if _is_square(heard.output) and heard.on_device:
                squares[_memory_of(heard.output)] = heard.site
        return None

    return hear


def _is_beside(heard: HeardOperator) -> bool:
    """Whether it is a diagonal beside the main one."""
    return heard.name in _TAKES and any(heard.args[1:2])


def _indexes_diagonal(heard: HeardOperator) -> bool:
    """Whether it is `matrix[i, i]` with all of its rows."""
    if heard.name != "aten::index" or not _is_square(heard.args[0]) or len(heard.args[1]) != 2:
        return False
    one, other = heard.args[1]
    if one is None or other is None or one.dtype != torch.int64 or not (one.is_cpu and other.is_cpu):
        return False  # on a device looking at them would be a wait of ours
    with _disable_current_modes():
        return torch.equal(one, torch.arange(len(heard.args[0]))) and torch.equal(one, other)


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if type(tensor) is torch.Tensor else 0


def _is_square(tensor: object) -> bool:
    if type(tensor) is not torch.Tensor or tensor.dim() != 2:
        return False
    return 1 < tensor.shape[0] == tensor.shape[1]


def _describe(matrix: torch.Tensor, made: Site) -> PatternFind:
    rows = matrix.shape[0]
    wasted = rows * (rows - 1) * matrix.element_size()
    return PatternFind(KIND, "diagonal", f"rows={rows} made={made.line.file}:{made.line.line}", wasted)


PART = CensusPattern("pairs_diagonal", listen)

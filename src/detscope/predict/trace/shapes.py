"""Outputs of the operators met most often, known without asking torch, whose own answer takes a millisecond.

A network has hundreds of batch norms and sums of its shapes; torch works each out in Python, from parts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BATCH_NORM, BATCH_NORM_BACKWARD = "aten.native_batch_norm", "aten.native_batch_norm_backward"
# one output, like all of their tensors
LIKE_THEIR_INPUTS = frozenset(
    f"aten.{name}"
    for name in (
        "add", "sub", "rsub", "mul", "div", "neg", "abs", "exp", "pow", "clamp", "relu", "silu", "sigmoid",
        "silu_backward", "sigmoid_backward", "threshold_backward", "hardtanh_backward", "hardswish_backward",
        "hardsigmoid_backward",
    )
)  # fmt: skip
_TRAINS, _TRAINS_BACKWARD, _WANTED = 5, 7, 9  # places of the arguments


class Described(tuple[tuple[int, ...], tuple[int, ...], torch.dtype]):
    """Shape, stride and kind of an output."""

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return self[0]


def known_outputs(name: str, args: Any, named: Any) -> Described | tuple[Described, ...] | None:
    """What an operator gives; None: torch has to be asked."""
    if named:
        return None
    if name in LIKE_THEIR_INPUTS:
        return _like_inputs(args)
    if name == BATCH_NORM and args[_TRAINS]:
        return _normalised(args[0], args[:5])
    if name == BATCH_NORM_BACKWARD and args[_TRAINS_BACKWARD] and all(args[_WANTED]):
        same = _like_inputs(args[:2])
        return _normalised(args[1], args[:7]) if same and args[2] is not None else None
    return None


def _like_inputs(args: Any) -> Described | None:
    """Where all tensors have one shape and lie in memory in its order."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    others = (one for one in args if not isinstance(one, Tensor))
    if not tensors or not all(isinstance(one, int | float) for one in others):
        return None
    first = tensors[0]
    same = all(one.shape == first.shape and _plain(one) for one in tensors)
    return Described((tuple(first.shape), first.stride(), first.dtype)) if same else None


def _normalised(image: Tensor, tensors: Any) -> tuple[Described, ...] | None:
    """An image, and two numbers per channel."""
    if not _plain(image) or any(one is not None and one.dtype != torch.float32 for one in tensors):
        return None
    channels = Described(((image.shape[1],), (1,), torch.float32))
    return Described((tuple(image.shape), image.stride(), torch.float32)), channels, channels


def _plain(tensor: Tensor) -> bool:
    """Numbers of 32 bits, row by row, nothing empty; strides of single rows are not left open either."""
    step, strides = 1, []
    for size in reversed(tensor.shape):
        strides.append(step)
        step *= size
    return tensor.dtype == torch.float32 and step > 0 and tensor.stride() == tuple(reversed(strides))

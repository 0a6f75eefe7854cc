"""Arithmetic on weights outside of autograd, tensor by tensor, as an average of them is updated."""

from __future__ import annotations

import sys

import torch

from detscope.record.census.callers import is_called_by
from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener, PatternFind

KIND = "average"
_OPERATORS = frozenset(
    f"aten::{name}" for name in ("mul_", "add_", "sub_", "lerp_", "copy_", "lerp", "mul", "add", "sub")
)
_NOT_IN = ("forward", "backward", "optimizer", "data", "transfer")


def listen() -> Listener:
    """Every such operator is a row; whether there are many of them is judged later."""

    def hear(operator: HeardOperator) -> PatternFind | None:
        if operator.name not in _OPERATORS or operator.phase in _NOT_IN or not operator.on_device:
            return None
        written = operator.args[0]
        if not isinstance(written, torch.Tensor) or not written.is_floating_point():
            return None
        follows = operator.with_grad and any(
            isinstance(one, torch.Tensor) and one.requires_grad for one in operator.args
        )
        if follows or is_called_by(sys._getframe(1), "torch/optim/optimizer.py", "wrapper"):
            return None  # an optimizer's own; after its closure no phase says so
        return PatternFind(KIND, operator.name, bytes=written.numel() * written.element_size())

    return hear


PART = CensusPattern("averages", listen)

"""Gradients that are scaled although nothing was computed in float16."""

from __future__ import annotations

import torch

from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener, PatternFind
from detscope.record.census.places import tensors_of

KIND = "scaling"
_UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"
_PRODUCTS = ("aten::convolution", "aten::mm", "aten::addmm", "aten::bmm", "aten::linear")


def listen() -> Listener:
    """Which numbers the products of a step were made of, until its gradients are unscaled."""
    dtypes: set[torch.dtype] = set()

    def hear(operator: HeardOperator) -> PatternFind | None:
        if operator.name in _PRODUCTS:
            dtypes.update(one.dtype for one in tensors_of(operator.output))
        if operator.name != _UNSCALE or torch.bfloat16 not in dtypes or torch.float16 in dtypes:
            return None
        gradients = list(tensors_of(operator.args[0]))
        size = sum(one.numel() * one.element_size() for one in gradients)
        return PatternFind(KIND, operator.name, f"tensors={len(gradients)}", size)

    return hear


PART = CensusPattern("scaled_gradients", listen)

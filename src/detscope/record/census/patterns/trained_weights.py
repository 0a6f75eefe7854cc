"""Layers with trained weights, called with and without gradients in one step."""

from __future__ import annotations

import sys

from torch import nn

from detscope.record.census.callers import find_own_site, is_called_by
from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener, PatternFind

KIND = "layer"
WITH, WITHOUT = "with gradients", "without gradients"
_WEIGHT_AT = {"aten::convolution": 1, "aten::linear": 1, "aten::t": 0}  # a product transposes its weight


def listen() -> Listener:
    """By the script's own line; functions that bring a gradient of their own run without gradients too."""

    def hear(operator: HeardOperator) -> PatternFind | None:
        at = _WEIGHT_AT.get(operator.name)
        if at is None or operator.phase == "backward":
            return None
        weight = operator.args[at]
        if not isinstance(weight, nn.Parameter) or not weight.requires_grad:
            return None
        frame = sys._getframe(1)
        if not operator.with_grad and is_called_by(frame, "torch/autograd/function.py", "apply"):
            return None
        what = WITH if operator.with_grad else WITHOUT
        return PatternFind(KIND, what, site=find_own_site(frame) or operator.site)

    return hear


PART = CensusPattern("trained_weights", listen)

"""Layers with trained weights, called with and without gradients in one step."""

from __future__ import annotations

import sys
import weakref

import torch
from torch import nn

from detscope.record.census.callers import find_model_call, is_called_by
from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener, PatternFind
from detscope.record.census.sites import Site

KIND = "layer"
WITH, WITHOUT, BESIDE = "with gradients", "without gradients", "between those without gradients"
_WEIGHT_AT = {"aten::convolution": 1, "aten::linear": 1, "aten::t": 0}  # a product transposes its weight
_WEIGHT_AT |= {f"aten::conv{dims}d": 1 for dims in (1, 2, 3)}  # as inference_mode leaves them
_trained: dict[int, weakref.ref[torch.Tensor]] = {}  # weights that were used with gradients, in any step


def listen() -> Listener:
    """By the line that calls the network; functions with a gradient of their own run without gradients.

    A layer counts once: a step may go through the network several times, and levels may share a layer.
    """
    trained: set[int] = set()
    called: set[tuple[int, Site]] = set()

    def hear(operator: HeardOperator) -> PatternFind | None:
        if operator.phase == "backward" or not operator.on_device:
            return None
        at = _WEIGHT_AT.get(operator.name)
        weight = operator.args[at] if at is not None else None
        if not isinstance(weight, nn.Parameter) or not weight.requires_grad:
            weight = None
        if operator.with_grad:
            if weight is None or id(weight) in trained:
                return None
            trained.add(id(weight))
            _trained[id(weight)] = weakref.ref(weight)
            return PatternFind(KIND, WITH)
        if operator.is_view and weight is None:
            return None
        site = find_model_call(sys._getframe(1))
        if site is None or is_called_by(sys._getframe(1), "torch/autograd/function.py", "apply"):
            return None
        known = _trained.get(id(weight))
        is_trained = weight is not None and known is not None and known() is weight
        is_first = (id(weight), site) not in called
        called.add((id(weight), site))
        return PatternFind(KIND, WITHOUT if is_trained and is_first else BESIDE, site=site)

    return hear


PART = CensusPattern("trained_weights", listen)

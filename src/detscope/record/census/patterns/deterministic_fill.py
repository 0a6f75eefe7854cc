"""Memory that is written before it is used, because deterministic algorithms were asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import deterministic

from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener, PatternFind
from detscope.record.census.places import tensors_of
from detscope.record.census.written_calls import find_calls

KIND = "fill"
_SWITCHES = ("use_deterministic_algorithms", "set_deterministic_debug_mode")
_OFF = ("False", "0", "'default'")
# operators that take memory by `empty`, themselves or inside; torch fills it below the dispatcher
_TAKE_MEMORY = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_like", "empty_strided", "new_empty", "zeros", "zeros_like", "ones", "ones_like",
        "full", "full_like", "new_zeros", "new_ones", "new_full", "clone", "convolution",
        "convolution_backward", "native_batch_norm", "native_batch_norm_backward", "native_layer_norm",
        "native_layer_norm_backward",
    )
)  # fmt: skip


def is_filling() -> bool:
    """Whether torch fills memory now."""
    fills = getattr(deterministic, "fill_uninitialized_memory", False)  # of the module's class
    return torch.are_deterministic_algorithms_enabled() and bool(fills)


def listen() -> Listener:
    """Operators whose results were filled first, as far as that is known of them."""
    if not is_filling():
        return lambda _operator: None

    def hear(operator: HeardOperator) -> PatternFind | None:
        if operator.name not in _TAKE_MEMORY or not operator.on_device:
            return None
        size = sum(one.numel() * one.element_size() for one in tensors_of(operator.output))
        return PatternFind(KIND, operator.name, bytes=size)

    return hear


def tell_facts() -> dict[str, Any]:
    """That it is on in the step, and where the sources call for it."""
    if not is_filling():
        return {}
    calls = [call for call in find_calls(_SWITCHES) if call["with"] not in _OFF]
    return {"on": True, "calls": calls[:20]}


PART = CensusPattern("deterministic_fill", listen, facts=tell_facts)

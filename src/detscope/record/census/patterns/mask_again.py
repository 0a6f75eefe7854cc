"""A mask that indexes a second time: its true elements were counted before."""

from __future__ import annotations

import weakref

import torch

from detscope.record.census.operators import is_masked
from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener, PatternFind


def listen() -> Listener:
    """Masks of one step, by identity and version: one that was changed is another."""
    seen: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def hear(heard: HeardOperator) -> PatternFind | None:
        if not heard.on_device or heard.phase == "backward" or not is_masked(heard.name, heard.args):
            return None
        mask = next(
            one for one in heard.args[1] if one is not None and one.dtype in (torch.bool, torch.uint8)
        )
        version = 0 if mask.is_inference() else mask._version
        known = seen.get(id(mask))
        if known is not None and known[0]() is mask and known[1] == version:
            return PatternFind("mask_again", heard.name)
        seen[id(mask)] = weakref.ref(mask), version
        return None

    return hear


PART = CensusPattern("mask_again", listen)

"""An in-place operator before which autograd copies the tensor, because its gradient needs what was there."""

from __future__ import annotations

import torch

from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener, PatternFind

KIND = "clone"


def listen() -> Listener:
    """Autograd clones the tensor, then the operator writes into the tensor itself, at the same line."""
    last: list[HeardOperator] = []

    def hear(operator: HeardOperator) -> PatternFind | None:
        before = last.pop() if last else None
        if operator.name == "aten::clone" and operator.with_grad:
            last.append(operator)
            return None
        in_place = operator.name.endswith("_") and not operator.name.endswith("__")
        if before is None or not in_place or operator.phase == "backward":
            return None
        copied = before.args[0]
        if operator.args[0] is not copied or operator.site != before.site or not _is_followed(copied):
            return None
        return PatternFind(KIND, operator.name, bytes=copied.numel() * copied.element_size())

    return hear


def _is_followed(tensor: object) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.requires_grad


PART = CensusPattern("inplace_clones", listen)

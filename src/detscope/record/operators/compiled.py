"""What torch.compile has taken in this process."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn


def has_compiled_parts(module: nn.Module) -> bool:
    """Whether torch.compile has taken the model or a part of it."""
    if "torch._dynamo" not in sys.modules:
        return False
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def count_compiled_frames() -> int:
    """Functions that torch.compile has compiled in this process."""
    utilities = sys.modules.get("torch._dynamo.utils")
    counters: Any = getattr(utilities, "counters", None)
    return int(counters["frames"]["total"]) if counters and "frames" in counters else 0

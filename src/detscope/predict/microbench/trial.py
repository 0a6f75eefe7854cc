"""A layer to measure, and the sizes that layers are drawn from."""

from __future__ import annotations

from dataclasses import dataclass

from detscope.predict.layers.graph import Operation
from detscope.predict.layers.times import INFERENCE, TRAINING

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32)
SIZES = (1, 2, 3, 4, 5, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112)


@dataclass(frozen=True)
class Trial:
    """A layer to measure, `variant` where a kind has several (silu, sigmoid, ...).

    `parts`: calls of one run that are alike; the time is that of one of them.
    """

    operation: Operation
    batch: int
    stages: tuple[str, ...] = (TRAINING, INFERENCE)
    variant: str = ""
    parts: int = 1

"""A user's model file that brings a data set along: behind a slow disk, but on rank 1 only."""

from __future__ import annotations

import os
import time
from typing import Any

from torch import nn

from detscope.data.registry import OpenRequest, register
from detscope.data.synthetic import open_synthetic

SECONDS_PER_IMAGE = 0.15


class SlowOnRankOne:
    """Every image takes its time where RANK is 1."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if os.environ.get("RANK") == "1":
            time.sleep(SECONDS_PER_IMAGE)
        return self.inner[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("inner", "read"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def open_slow(request: OpenRequest) -> Any:
    """`--data slow_on_rank_1`."""
    return SlowOnRankOne(open_synthetic(request))


register("slow_on_rank_1", "synthetic, slow on rank 1", f"{__name__}:open_slow")


def detector(num_classes: int = 2) -> nn.Module:
    """`slow_rank.py:detector`: a tiny RetinaNet."""
    from detscope.zoo.contract import BuildOptions
    from detscope.zoo.registry import build

    return build("tiny_retinanet", BuildOptions(num_classes=num_classes, weights="none", seed=0)).module

"""A user's model file: a tiny Faster R-CNN that waits at a certain step while a file says so."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

GATE, WAITING = "gate", "waiting"  # in the current folder: the number of a training step; it has come there


def detector(num_classes: int = 2) -> nn.Module:
    """`gated.py:detector`: whoever stops it there knows how far it is, on any machine."""
    from detscope.zoo.contract import BuildOptions
    from detscope.zoo.registry import build_model

    model = build_model(
        "tiny_fasterrcnn", BuildOptions(num_classes=num_classes, weights="none", seed=0)
    ).module
    calls = 0

    def wait(module: nn.Module, _inputs: object) -> None:
        nonlocal calls
        calls += module.training
        gate = Path(GATE)
        if module.training and gate.exists() and calls == int(gate.read_text()):
            Path(WAITING).touch()
            while gate.exists():
                time.sleep(0.01)

    model.register_forward_pre_hook(wait)
    return model

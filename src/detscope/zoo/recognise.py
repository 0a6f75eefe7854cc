"""A model that is already there: which family it is of, so that its parts get their names."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from detscope.zoo.contract import Observer, Stage
from detscope.zoo.observers import observers_for
from detscope.zoo.stages import stages_for
from detscope.zoo.user import known_family

if TYPE_CHECKING:
    from torch import nn


def recognise(module: nn.Module) -> tuple[str, tuple[Stage, ...], tuple[Observer, ...]]:
    """Family, stages and observers; a model of no known family has its top-level children as stages."""
    # importing torchvision takes seconds, and a model of its making has imported it already
    family = known_family(module) if "torchvision.models.detection" in sys.modules else "user"
    return family, stages_for(family, module), observers_for(family, module)

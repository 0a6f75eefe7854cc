"""The last step of building: input size set, stages and observers named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detscope.zoo.contract import BuiltModel, ModelCard, WeightsUsed
from detscope.zoo.observers import observers_for
from detscope.zoo.stages import stages_for

if TYPE_CHECKING:
    from torch import nn


def assembled(
    card: ModelCard,
    module: nn.Module,
    weights: WeightsUsed,
    image_size: int | None = None,
    notes: tuple[str, ...] = (),
) -> BuiltModel:
    """A torchvision-like detector with everything a caller needs beside it."""
    if image_size is not None:
        set_image_size(module.get_submodule("transform"), image_size)
    family = card.family
    return BuiltModel(
        module=module,
        card=card,
        stages=stages_for(family, module),
        observers=observers_for(family, module),
        weights=weights,
        notes=notes,
    )


def set_image_size(transform: Any, image_size: int) -> None:
    """Short side becomes `image_size`, the longest allowed side keeps its ratio to it; SSD stays square."""
    if transform.fixed_size is not None:
        transform.fixed_size = (image_size, image_size)
        transform.min_size, transform.max_size = (image_size,), image_size
        return
    longest = round(image_size * transform.max_size / max(transform.min_size))
    transform.min_size, transform.max_size = (image_size,), longest

"""How strong each bundle of channels is: the mean absolute weight of the filters that make it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detscope.zoo.pruning.apply import find_layer
from detscope.zoo.pruning.channels import Bundles

if TYPE_CHECKING:
    from torch import nn


def strengths(module: nn.Module, bundles: Bundles) -> npt.NDArray[np.float64]:
    """L1 norm of each filter over its size, averaged over the filters of a bundle."""
    total = np.zeros(bundles.count)
    filters = np.zeros(bundles.count)
    for (name, side), owners in bundles.owners.items():
        if side != "out":
            continue
        by_channel = _filter_strength(find_layer(module, name))
        if by_channel is None:
            continue
        free = owners >= 0
        np.add.at(total, owners[free], by_channel[free])
        np.add.at(filters, owners[free], 1.0)
    return total / np.maximum(filters, 1.0)


def _filter_strength(layer: Any) -> npt.NDArray[np.float64] | None:
    from torch import nn

    if not isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
        return None
    weight = layer.weight.detach()
    if isinstance(layer, nn.modules.conv._ConvNd) and layer.transposed:
        if layer.groups > 1:  # their filters lie in one another's place
            return None
        weight = weight.transpose(0, 1)
    strength: npt.NDArray[np.float64] = weight.abs().flatten(1).mean(dim=1).double().numpy()
    return strength

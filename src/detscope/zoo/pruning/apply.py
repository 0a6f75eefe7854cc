"""Cutting a module: its tensors sliced, or only given the shapes that a file will fill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from detscope.zoo.pruning.layers import Axis, Indices, set_widths, sides_of
from detscope.zoo.pruning.plan import LayerCut

if TYPE_CHECKING:
    from torch import Tensor, nn


def find_layer(module: nn.Module, name: str) -> Any:
    """A submodule or a parameter by its dotted name; AttributeError where there is none."""
    owner_name, _, last = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    found = getattr(owner, last) if last else owner
    if found is None:
        raise AttributeError(f"{name} is nothing here")
    return found


def cut(module: nn.Module, plan: Mapping[str, LayerCut], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Remove the plan's channels in place.

    With `tensors` (those of the uncut network, by name) the new tensors are slices of them; without,
    they only have the right shape.
    """
    for name, layer_cut in plan.items():
        _cut_layer(module, name, layer_cut, tensors)
    _tell_root(module)


def _tell_root(module: Any) -> None:
    """torchvision's ViT reshapes by a width that it keeps beside its layers."""
    if hasattr(module, "conv_proj") and hasattr(module, "hidden_dim"):
        module.hidden_dim = module.conv_proj.out_channels


def _cut_layer(
    module: nn.Module, name: str, layer_cut: LayerCut, tensors: Mapping[str, Tensor] | None
) -> None:
    layer = find_layer(module, name)
    sides = sides_of(layer, layer_cut.axis)
    removed = {side: channels for side, channels in layer_cut.removed.items() if len(channels)}
    keep: dict[str, dict[int, Indices]] = {}
    for side, channels in removed.items():
        if side not in sides or channels.max() >= sides[side].channels:
            raise ValueError(f"{name} has no such channels on its side {side!r}")
        for axis in sides[side].axes:
            keep.setdefault(axis.tensor, {})[axis.dim] = _kept(axis, channels)
    for tensor, by_dim in keep.items():
        full_name = ".".join(part for part in (name, tensor) if part)
        _replace(module, full_name, by_dim, None if tensors is None else tensors[full_name])
    if layer_cut.axis is None:
        set_widths(layer, {side: len(channels) for side, channels in removed.items()})


def _kept(axis: Axis, channels: Indices) -> Indices:
    gone = np.unique(axis.positions(channels))
    return np.setdiff1d(np.arange(axis.length, dtype=np.int64), gone, assume_unique=True)


def _replace(module: nn.Module, name: str, keep: Mapping[int, Indices], source: Tensor | None) -> None:
    import torch
    from torch import nn

    owner_name, _, last = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    old = getattr(owner, last)
    if source is None:
        shape = [len(keep[dim]) if dim in keep else size for dim, size in enumerate(old.shape)]
        new = torch.empty(shape, dtype=old.dtype, device=old.device)
    else:
        new = source.detach()
        for dim, kept in keep.items():
            new = new.index_select(dim, torch.from_numpy(kept))
    if isinstance(old, nn.Parameter):
        setattr(owner, last, nn.Parameter(new, requires_grad=old.requires_grad))
    else:
        setattr(owner, last, new)

"""Where a layer's channels lie in its tensors, which of its attributes count them, and cutting them out.

One rule per kind of layer. `out` and `in` are its two sides; a layer whose sides are the same channels
(normalisation, depthwise convolution, attention, a lone parameter) has the side `out` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor, nn

Indices = npt.NDArray[np.int64]
# Attributes in which layers count the channels of a side, whichever a layer has.
_COUNTERS = {
    "out": ("out_channels", "out_features", "num_features", "num_channels", "num_parameters", "embed_dim"),
    "in": ("in_channels", "in_features"),
}


@dataclass(frozen=True)
class ChannelAxis:
    """One dimension of a tensor that a side's channels run along."""

    tensor: str
    dim: int
    channels: int
    blocks: int = 1  # the channels are there this many times, one after another: q, k and v
    groups: int = 1  # only one group's channels are there, shared by all groups of a convolution

    @property
    def entry_count(self) -> int:
        """Entries along the dimension."""
        return self.channels * self.blocks // self.groups

    def find_positions(self, channels: Indices) -> Indices:
        """Where these channels lie along the dimension; `blocks` rows of them."""
        if self.groups > 1:
            return (channels % (self.channels // self.groups))[None]
        return channels[None] + self.channels * np.arange(self.blocks, dtype=np.int64)[:, None]


@dataclass(frozen=True)
class Side:
    """The channels of one side of a layer."""

    channels: int
    axes: tuple[ChannelAxis, ...]
    groups: int = 1  # so many equal groups, which must stay equal


@dataclass(frozen=True)
class LayerCut:
    """Channels removed from one layer, by side; `axis` for a lone parameter."""

    removed: Mapping[str, Indices]
    axis: int | None = None


def list_sides(module: Any, axis: int | None = None) -> dict[str, Side]:
    """The sides of a layer; empty for a kind that is not known. `axis` is for a lone parameter."""
    from torch import nn
    from torchvision.ops import FrozenBatchNorm2d

    if isinstance(module, nn.Parameter):
        dim = axis if axis is not None else module.dim() - 1
        return {"out": Side(module.shape[dim], (ChannelAxis("", dim, module.shape[dim]),))}
    if isinstance(module, nn.modules.conv._ConvNd):
        return _describe_convolution(module)
    if isinstance(module, nn.Linear):
        outputs, inputs = module.out_features, module.in_features
        axes = (ChannelAxis("weight", 0, outputs), *_list_present(module, ("bias",), outputs))
        return {"out": Side(outputs, axes), "in": Side(inputs, (ChannelAxis("weight", 1, inputs),))}
    if isinstance(module, nn.MultiheadAttention):
        return _describe_attention(module)
    if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.modules.instancenorm._InstanceNorm):
        channels = int(module.num_features)
    elif isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        channels = module.normalized_shape[0]
    elif isinstance(module, nn.GroupNorm):
        channels = int(module.num_channels)
    elif isinstance(module, FrozenBatchNorm2d) or (
        isinstance(module, nn.PReLU) and module.num_parameters > 1
    ):
        channels = len(module.weight)
    else:
        return {}
    groups = module.num_groups if isinstance(module, nn.GroupNorm) else 1
    tensors = ("weight", "bias", "running_mean", "running_var")
    return {"out": Side(channels, _list_present(module, tensors, channels), groups)}


def set_widths(module: Any, removed: dict[str, int]) -> None:
    """Tell the layer how many channels it has left, after its tensors were cut."""
    from torch import nn

    gone = {"out": removed.get("out", 0), "in": removed.get("in", 0)}
    if isinstance(module, nn.modules.conv._ConvNd) and is_depthwise(module):
        module.groups -= gone["out"]
        gone["in"] = gone["out"]
    for side, counters in _COUNTERS.items():
        for name in counters:
            if hasattr(module, name):
                setattr(module, name, getattr(module, name) - gone[side])
    if isinstance(module, nn.MultiheadAttention):
        module.kdim = module.vdim = module.embed_dim
        module.head_dim = module.embed_dim // module.num_heads
        module.out_proj.in_features = module.out_proj.out_features = module.embed_dim
    elif isinstance(module, nn.LayerNorm):
        module.normalized_shape = (module.normalized_shape[0] - gone["out"],)


def is_depthwise(module: Any) -> bool:
    """Each output channel sees its own input channel and no other."""
    return bool(module.groups == module.out_channels == module.in_channels and module.groups > 1)


def list_widths(module: nn.Module) -> dict[str, list[int]]:
    """Input and output channels of every convolution and linear layer."""
    from torch import nn

    widths = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.conv._ConvNd):
            widths[name] = [layer.in_channels, layer.out_channels]
        elif isinstance(layer, nn.Linear):
            widths[name] = [layer.in_features, layer.out_features]
    return widths


def _describe_convolution(module: Any) -> dict[str, Side]:
    outputs, inputs, groups = module.out_channels, module.in_channels, module.groups
    bias = _list_present(module, ("bias",), outputs)
    if is_depthwise(module):
        return {"out": Side(outputs, (ChannelAxis("weight", 0, outputs), *bias))}
    out_dim, in_dim = (1, 0) if module.transposed else (0, 1)
    # of the two, the weight holds that dimension for one group only which is not its first
    out_axis = ChannelAxis("weight", out_dim, outputs, groups=groups if module.transposed else 1)
    in_axis = ChannelAxis("weight", in_dim, inputs, groups=1 if module.transposed else groups)
    return {"out": Side(outputs, (out_axis, *bias), groups), "in": Side(inputs, (in_axis,), groups)}


def _describe_attention(module: Any) -> dict[str, Side]:
    size = module.embed_dim
    if module.in_proj_weight is None or module.bias_k is not None or module.bias_v is not None:
        return {}
    axes = [ChannelAxis("in_proj_weight", 0, size, blocks=3), ChannelAxis("in_proj_weight", 1, size)]
    if module.in_proj_bias is not None:
        axes.append(ChannelAxis("in_proj_bias", 0, size, blocks=3))
    axes += [ChannelAxis("out_proj.weight", 0, size), ChannelAxis("out_proj.weight", 1, size)]
    if module.out_proj.bias is not None:
        axes.append(ChannelAxis("out_proj.bias", 0, size))
    return {"out": Side(size, tuple(axes), module.num_heads)}


def _list_present(module: Any, tensors: Sequence[str], channels: int) -> tuple[ChannelAxis, ...]:
    there = [name for name in tensors if getattr(module, name, None) is not None]
    return tuple(ChannelAxis(name, 0, channels) for name in there)


def find_layer(module: nn.Module, name: str) -> Any:
    """A submodule or a parameter by its dotted name; AttributeError where there is none."""
    owner_name, _, last = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    found = getattr(owner, last) if last else owner
    if found is None:
        raise AttributeError(f"{name} is nothing here")
    return found


def cut_layers(
    module: nn.Module, plan: Mapping[str, LayerCut], tensors: Mapping[str, Tensor] | None = None
) -> None:
    """Remove the plan's channels in place.

    With `tensors` (those of the uncut network, by name) the new tensors are slices of them; without,
    they only have the right shape.
    """
    for name, layer_cut in plan.items():
        layer = find_layer(module, name)
        sides = list_sides(layer, layer_cut.axis)
        removed = {side: channels for side, channels in layer_cut.removed.items() if len(channels)}
        keep: dict[str, dict[int, Indices]] = {}
        for side, channels in removed.items():
            if side not in sides or channels.max() >= sides[side].channels:
                raise ValueError(f"{name} has no such channels on its side {side!r}")
            for axis in sides[side].axes:
                gone = np.unique(axis.find_positions(channels))
                entries = np.arange(axis.entry_count, dtype=np.int64)
                keep.setdefault(axis.tensor, {})[axis.dim] = np.setdiff1d(entries, gone, assume_unique=True)
        for tensor, by_dim in keep.items():
            full_name = ".".join(part for part in (name, tensor) if part)
            _replace_tensor(module, full_name, by_dim, None if tensors is None else tensors[full_name])
        if layer_cut.axis is None:
            set_widths(layer, {side: len(channels) for side, channels in removed.items()})
    root: Any = module
    if hasattr(root, "conv_proj") and hasattr(root, "hidden_dim"):
        root.hidden_dim = root.conv_proj.out_channels  # torchvision's ViT keeps a width beside its layers


def _replace_tensor(module: nn.Module, name: str, keep: Mapping[int, Indices], source: Tensor | None) -> None:
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

"""From a module to its groups of channels, by torch-pruning's dependency graph."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from detscope.errors import InputError
from detscope.zoo.networks import Network, list_outputs
from detscope.zoo.pruning.layers import find_layer, list_sides
from detscope.zoo.pruning.plan import Layer, Member
from detscope.zoo.registry import recognise_family

if TYPE_CHECKING:
    from torch import Tensor, nn

# Fused projections of attention: their rows are heads, which the module's own attributes count.
_FUSED = ("qkv", "q", "k", "v", "kv", "to_qkv")


@dataclass(frozen=True)
class ChannelGroups:
    """A network's layers that can be cut, and which of their channels go together."""

    layers: dict[str, Layer]
    groups: tuple[tuple[Member, ...], ...]


def find_groups(network: Network) -> ChannelGroups:
    """Trace the network once and find the groups; what cannot be traced is an InputError of one line."""
    module = network.module
    try:
        with _allow_gradients(module), warnings.catch_warnings():
            # lone parameters and unknown operations are checked by running the result
            warnings.simplefilter("ignore")
            # after this warning the library searches on for hours
            warnings.filterwarnings("error", message="Maximum recursive depth reached")
            import torch_pruning  # type: ignore[import-untyped]
            from torch import nn
            from torchvision.ops import FrozenBatchNorm2d

            graph = torch_pruning.DependencyGraph()
            graph.build_dependency(
                module,
                example_inputs=make_tracing_images(network),
                forward_fn=lambda _module, images: trace_outputs(network, images),
                customized_pruners={FrozenBatchNorm2d: _frozen_norm_pruner()},
                verbose=False,
            )
            # layers whose output channels stay: those that give the network's outputs, and fused projections
            kept = [layer for layer, node in graph.module2node.items() if not node.outputs]
            kept += [
                layer
                for name, layer in module.named_modules()
                if isinstance(layer, nn.Linear | nn.Conv2d) and name.rpartition(".")[2] in _FUSED
            ]
            found = list(graph.get_all_groups(ignored_layers=kept))
            names = {id(layer): name for name, layer in module.named_modules()}
            names |= {id(parameter): name for name, parameter in module.named_parameters()}
            groups = [_list_members(graph, group, names) for group in found]
    except InputError:
        raise
    except Exception as problem:  # the library raises whatever its arithmetic meets
        words = (str(problem).strip().splitlines() or [""])[0][:160]
        raise InputError(
            f"{network.name} cannot be pruned: its dependency graph cannot be built "
            f"({type(problem).__name__}{': ' + words if words else ''})",
            "it uses an operation that mixes channels in a way torch-pruning does not follow",
        ) from problem
    # autograd is read from the outputs backwards; layers are registered in the order they were written in
    place = {name: index for index, name in enumerate(names.values())}
    usable = sorted((tuple(group) for group in groups if group), key=lambda group: place[group[0].layer])
    if not usable:
        raise InputError(
            f"{network.name} cannot be pruned: no channel of it can be removed",
            "every layer feeds its output or has a shape that is fixed",
        )
    used = {member.layer for group in usable for member in group}
    axes = {names[id(parameter)]: int(dim) for parameter, dim in graph.unwrapped_parameters}
    layers = {name: _describe_layer(module, name, axes.get(name)) for name in names.values() if name in used}
    return ChannelGroups(layers, tuple(usable))


def make_tracing_images(network: Network) -> Tensor:
    """One image for tracing; channels do not depend on its size, and small ones are quick."""
    import torch

    size = network.image_size
    if network.kind == "detector":
        size = min(size, recognise_family(network.module).tracing_size or size)
    return torch.zeros(1, 3, size, size)


def trace_outputs(network: Network, images: Tensor) -> list[Tensor]:
    """All outputs of the network, through every layer that trains, with shapes that never depend on data."""
    module: Any = network.module
    if network.kind == "detector":
        return recognise_family(module).trace_outputs(module, images)
    # side classifiers run in training only, and only the root asks for it: norms and dropout stay as they are
    module.training = bool(getattr(module, "aux_logits", False))
    return list_outputs(module(images))


def _frozen_norm_pruner() -> Any:
    """Tells the graph that a frozen batch norm has channels; cutting is done elsewhere."""
    from torch_pruning.pruner.function import BasePruningFunc  # type: ignore[import-untyped]

    class FrozenNormPruner(BasePruningFunc):  # type: ignore[misc]
        def prune_out_channels(self, layer: Any, idxs: Sequence[int]) -> Any:  # noqa: ARG002
            return layer

        prune_in_channels = prune_out_channels

        def get_out_channels(self, layer: Any) -> int:
            return len(layer.weight)

        get_in_channels = get_out_channels

    return FrozenNormPruner()


@contextmanager
def _allow_gradients(module: nn.Module) -> Iterator[None]:
    """Everything needs a gradient while tracing: the graph is read off autograd."""
    import torch

    modes = [(part, part.training) for part in module.modules()]
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for part, training in modes:
            part.training = training


def _list_members(graph: Any, group: Any, names: dict[int, str]) -> list[Member]:
    """The group's layers; none where it reaches an output, or one is of a kind that cannot be cut."""
    from torch import nn
    from torch_pruning import ops

    if any(isinstance(dependency.target.module, ops._OutputOp) for dependency, _ in group):
        return []
    members = []
    for item in group:
        target = item.dep.target.module
        name = names.get(id(target))
        if name is None:  # an operation without tensors of its own
            continue
        sides = list_sides(target, item.dep.target.pruning_dim)
        side = "out" if "in" not in sides or graph.is_out_channel_pruning_fn(item.dep.handler) else "in"
        if side not in sides:
            return []
        channels, roots = np.array(item.idxs, dtype=np.int64), np.array(item.root_idxs, dtype=np.int64)
        if len(channels) and channels.max() >= sides[side].channels:
            if isinstance(target, nn.Parameter):  # weights of an addition, not of channels
                continue
            return []
        members.append(Member(name, side, channels, roots))
    return members


def _describe_layer(module: nn.Module, name: str, axis: int | None) -> Layer:
    from torch import nn

    layer: Any = find_layer(module, name)
    sides = list_sides(layer, axis)
    if isinstance(layer, nn.Parameter):
        return Layer(sides, {"": tuple(layer.shape)}, frozenset({""}), axis)
    tensors = {axis.tensor for side in sides.values() for axis in side.axes}
    parameters = {key for key, _ in layer.named_parameters()}
    shapes = {tensor: tuple(attrgetter(tensor)(layer).shape) for tensor in tensors}
    return Layer(sides, shapes, frozenset(tensors & parameters))

"""A network and its levels: traced once, then cut once for each level."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from detscope.errors import InputError
from detscope.zoo.networks.loading import build_network, count_parameters
from detscope.zoo.networks.network import Network
from detscope.zoo.networks.loading import leave_weights_unfilled
from detscope.zoo.pruning.apply import cut
from detscope.zoo.pruning.channels import ParameterCount, bundle
from detscope.zoo.pruning.folder import StoredNetwork, fill, own_tensors
from detscope.zoo.pruning.graph import anatomy_of
from detscope.zoo.pruning.plan import LayerCut, Mode, Plan, make_plan, removal_order, scores
from detscope.zoo.pruning.strength import strengths

if TYPE_CHECKING:
    from collections.abc import Mapping


class Pruner:
    """Prunes one network to any number of levels; the network itself stays as it is."""

    def __init__(self, network: Network, mode: Mode, seed: int) -> None:
        self.network = network
        anatomy = anatomy_of(network)
        self._layers = anatomy.layers
        self._bundles = bundle(anatomy.layers, anatomy.groups)
        self._count = ParameterCount(anatomy.layers, self._bundles, network.parameters)
        ranking = scores(mode, self._bundles, seed, strengths(network.module, self._bundles))
        self._order = removal_order(ranking, self._bundles)

    def plan(self, level: float) -> Plan:
        """What to remove for this level, in percent of the parameters."""
        return make_plan(level, self._order, self._bundles, self._layers, self._count)

    def pruned(self, plan: Plan, name: str) -> Network:
        """A network of its own, cut by the plan; its parameters are counted again."""
        with leave_weights_unfilled():
            fresh = build_network(self.network.base, image_size=self.network.image_size)
        tensors = own_tensors(self.network.module)
        cut(fresh.module, plan.cuts, tensors)
        _copy_uncut(own_tensors(fresh.module), tensors)
        real = count_parameters(fresh.module)
        if real != plan.parameters:
            raise AssertionError(f"{name}: {real} parameters left, {plan.parameters} were planned")
        return dataclasses.replace(fresh, name=name, parameters=real)


def rebuild(stored: StoredNetwork, image_size: int | None = None) -> Network:
    """The network of a folder: base model by name, cut by the plan, filled with its weights."""
    with leave_weights_unfilled():
        network = build_network(stored.base, image_size=image_size)
    _cut_as_stored(network, stored, stored.cuts)
    fill(network.module, stored)
    return dataclasses.replace(
        network,
        name=str(stored.card.get("name") or stored.folder.name),
        parameters=count_parameters(network.module),
        card=stored.card,
    )


def _cut_as_stored(network: Network, stored: StoredNetwork, cuts: Mapping[str, LayerCut]) -> None:
    try:
        cut(network.module, cuts)
    except (AttributeError, ValueError, IndexError, KeyError) as problem:
        raise InputError(
            f"{stored.folder}: its channel plan does not fit {stored.base.full_name} ({problem})",
            "it was made for another version of the model; make it again with `detscope prune`",
        ) from problem


def _copy_uncut(own: dict[str, Any], source: dict[str, Any]) -> None:
    for name, tensor in own.items():
        if tensor.shape == source[name].shape:
            tensor.copy_(source[name])

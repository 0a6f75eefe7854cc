"""A network and its levels: traced once, then cut once for each level.

With the proof that a pruned network is one: it runs, trains, and comes back from its folder bit by bit.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detscope.errors import InputError
from detscope.zoo.networks import Network, build_network, leave_weights_unfilled, load_network
from detscope.zoo.pruning.folder import StoredNetwork, fill_weights, own_tensors
from detscope.zoo.pruning.graph import find_groups
from detscope.zoo.pruning.layers import cut_layers, find_layer
from detscope.zoo.pruning.plan import (
    Bundles,
    Mode,
    ParameterCount,
    Plan,
    bundle_channels,
    make_plan,
    order_removal,
    score_bundles,
)
from detscope.zoo.structure import count_parameters
from detscope.zoo.weights import seed_weights

if TYPE_CHECKING:
    from torch import nn

_CHECK_BATCH = 2  # batch norm of a classifier may see one pixel: one image would be too few


class Pruner:
    """Prunes one network to any number of levels; the network itself stays as it is."""

    def __init__(self, network: Network, mode: Mode, seed: int) -> None:
        self.network = network
        anatomy = find_groups(network)
        self._layers = anatomy.layers
        self._bundles = bundle_channels(anatomy.layers, anatomy.groups)
        self._count = ParameterCount(anatomy.layers, self._bundles, network.parameters)
        ranking = score_bundles(mode, self._bundles, seed, measure_strengths(network.module, self._bundles))
        self._order = order_removal(ranking, self._bundles)

    def plan_level(self, level: float) -> Plan:
        """What to remove for this level, in percent of the parameters."""
        return make_plan(level, self._order, self._bundles, self._layers, self._count)

    def prune_network(self, plan: Plan, name: str) -> Network:
        """A network of its own, cut by the plan; its parameters are counted again."""
        with leave_weights_unfilled():
            fresh = build_network(self.network.base, image_size=self.network.image_size)
        tensors = own_tensors(self.network.module)
        cut_layers(fresh.module, plan.cuts, tensors)
        for key, tensor in own_tensors(fresh.module).items():
            if tensor.shape == tensors[key].shape:
                tensor.copy_(tensors[key])
        real = count_parameters(fresh.module)
        if real != plan.parameters:
            raise AssertionError(f"{name}: {real} parameters left, {plan.parameters} were planned")
        return dataclasses.replace(fresh, name=name, parameters=real)


def rebuild_network(stored: StoredNetwork, image_size: int | None = None) -> Network:
    """The network of a folder: base model by name, cut by the plan, filled with its weights."""
    with leave_weights_unfilled():
        network = build_network(stored.base, image_size=image_size)
    try:
        cut_layers(network.module, stored.cuts)
    except (AttributeError, ValueError, IndexError, KeyError) as problem:
        raise InputError(
            f"{stored.folder}: its channel plan does not fit {stored.base.full_name} ({problem})",
            "it was made for another version of the model; make it again with `detscope prune`",
        ) from problem
    fill_weights(network.module, stored)
    return dataclasses.replace(
        network,
        name=str(stored.card.get("name") or stored.folder.name),
        parameters=count_parameters(network.module),
        card=stored.card,
    )


def count_flops(network: Network) -> int:
    """Operations of one image's forward pass, as torch counts them; also shows that it runs."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    try:
        with counter:
            network.infer(network.example_input())
    except (RuntimeError, ValueError, AssertionError) as problem:
        raise _report_failure(network, problem) from problem
    return int(counter.get_total_flops())


def try_out(network: Network, folder: Path) -> None:
    """Load the folder and compare: outputs and training loss are the same bits, gradients are finite."""
    loaded = load_network(folder)
    images = network.example_input(seed=1)
    # a detector's largest inputs take seconds each, so it gets as few as it can train with
    size = max(network.min_train_batch, _CHECK_BATCH if network.kind == "classifier" else 1)
    batch = network.random_batch(size)
    try:
        same = is_identical(network.infer(images), loaded.infer(images))
        with seed_weights(0):
            expected = network.loss(batch)
        with seed_weights(0):
            loss = loaded.loss(batch)
        loss.backward()
    except (RuntimeError, ValueError, AssertionError) as problem:
        raise _report_failure(network, problem) from problem
    if not same or not is_identical(expected, loss):
        raise InputError(
            f"{network.name} cannot be kept: read back from its folder it gives other outputs",
            "it holds state that is neither parameter nor buffer, or its outputs are not deterministic",
        )


def is_identical(one: Any, other: Any) -> bool:
    """Whether nested outputs are equal bit by bit; NaN equals NaN."""
    import torch

    try:
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    except AssertionError:
        return False
    return True


def _report_failure(network: Network, problem: Exception) -> InputError:
    words = (str(problem).strip().splitlines() or [""])[0][:160]
    return InputError(
        f"{network.name} cannot be pruned: cut, it does not run ({type(problem).__name__}: {words})",
        "it counts its channels somewhere outside its layers",
    )


def measure_strengths(module: nn.Module, bundles: Bundles) -> npt.NDArray[np.float64]:
    """L1 norm of each filter over its size, averaged over the filters of a bundle."""
    from torch import nn

    total = np.zeros(bundles.count)
    filters = np.zeros(bundles.count)
    for (name, side), owners in bundles.owners.items():
        layer = find_layer(module, name)
        if side != "out" or not isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            continue
        weight: Any = layer.weight.detach()
        if isinstance(layer, nn.modules.conv._ConvNd) and layer.transposed:
            if layer.groups > 1:  # their filters lie in one another's place
                continue
            weight = weight.transpose(0, 1)
        by_channel = weight.abs().flatten(1).mean(dim=1).double().numpy()
        free = owners >= 0
        np.add.at(total, owners[free], by_channel[free])
        np.add.at(filters, owners[free], 1.0)
    return total / np.maximum(filters, 1.0)

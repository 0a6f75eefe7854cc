"""Proof that a pruned network is one: it runs, trains, and comes back from its folder bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detscope.errors import InputError
from detscope.zoo.networks.network import Network

_CHECK_BATCH = 2  # batch norm of a classifier may see one pixel: one image would be too few


def forward_flops(network: Network) -> int:
    """Operations of one image's forward pass, as torch counts them; also shows that it runs."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    try:
        with counter:
            network.infer(network.example_input())
    except (RuntimeError, ValueError, AssertionError) as problem:
        raise _does_not_run(network, problem) from problem
    return int(counter.get_total_flops())


def try_out(network: Network, folder: Path) -> None:
    """Load the folder and compare: outputs and training loss are the same bits, gradients are finite."""
    from detscope.zoo.networks.loading import load_network
    from detscope.zoo.seeding import seed_weights

    loaded = load_network(folder)
    images = network.example_input(seed=1)
    # a detector's largest inputs take seconds each, so it gets as few as it can train with
    size = max(network.min_train_batch, _CHECK_BATCH if network.kind == "classifier" else 1)
    batch = network.random_batch(size)
    try:
        same = identical(network.infer(images), loaded.infer(images))
        with seed_weights(0):
            expected = network.loss(batch)
        with seed_weights(0):
            loss = loaded.loss(batch)
        loss.backward()
    except (RuntimeError, ValueError, AssertionError) as problem:
        raise _does_not_run(network, problem) from problem
    if not same or not identical(expected, loss):
        raise InputError(
            f"{network.name} cannot be kept: read back from its folder it gives other outputs",
            "it holds state that is neither parameter nor buffer, or its outputs are not deterministic",
        )


def identical(one: Any, other: Any) -> bool:
    """Whether nested outputs are equal bit by bit; NaN equals NaN."""
    import torch

    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and one.shape == other.shape
            and bool(torch.equal(torch.nan_to_num(one.detach()), torch.nan_to_num(other.detach())))
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(identical, one, other))
    return bool(one == other)


def _does_not_run(network: Network, problem: Exception) -> InputError:
    words = (str(problem).strip().splitlines() or [""])[0][:160]
    return InputError(
        f"{network.name} cannot be pruned: cut, it does not run ({type(problem).__name__}: {words})",
        "it counts its channels somewhere outside its layers",
    )

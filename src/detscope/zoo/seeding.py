"""Random weights that depend on the seed alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seed_weights(seed: int) -> Iterator[None]:
    """Draw from `seed` in the block; the caller's random state is as before afterwards.

    Models are made on the CPU, so only the CPU's generator is touched: seeding through
    `torch.manual_seed` would change every CUDA generator of the caller as well.
    """
    import torch

    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)

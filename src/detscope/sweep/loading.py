"""Batches from loader workers, for trials whose steps wait for their data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detscope.zoo.networks.contract import Batch, Network

_ENOUGH = 10**9


class RandomBatches:
    """A data set whose items are whole random batches, each of its own seed."""

    def __init__(self, network: Network, batch_size: int, seed: int) -> None:
        self._network, self._batch_size, self._seed = network, batch_size, seed

    def __len__(self) -> int:
        return _ENOUGH

    def __getitem__(self, index: int) -> Batch:
        return self._network.random_batch(self._batch_size, seed=self._seed + index)


@contextmanager
def loaded_batches(
    network: Network, batch_size: int, workers: int, prefetch: int | None, seed: int, device: str
) -> Iterator[Iterator[Batch]]:
    """Batches that `workers` processes make ahead; the processes end with the block."""
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        RandomBatches(network, batch_size, seed),  # type: ignore[arg-type]
        batch_size=None,
        sampler=range(_ENOUGH),
        num_workers=workers,
        prefetch_factor=prefetch,
    )
    iterator = iter(loader)

    def moved() -> Iterator[Batch]:
        for batch in iterator:
            yield _on(batch, device)

    try:
        yield moved()
    finally:
        iterator._shutdown_workers()


def _on(value: Any, device: str) -> Any:
    if hasattr(value, "to"):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {name: _on(item, device) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_on(item, device) for item in value]
    if hasattr(value, "inputs"):
        return type(value)(_on(value.inputs, device), _on(value.targets, device))
    return value

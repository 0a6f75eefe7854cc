"""The order of the data in every pass depends on seed and pass alone, so that a resumed one continues it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class PassOrder:
    """Stands before a loader's batches: seeds their order anew for each pass, and may begin inside one."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._batches: Any = loader.batch_sampler
        self._generator: Any = loader.generator
        self._seed = seed
        self._pass = 0
        self._skip = 0
        vars(loader)["batch_sampler"] = self  # the loader refuses plain assignment once it is made

    def begin_pass(self, number: int, skip: int = 0) -> None:
        """The next pass has this number; its first `skip` batches were done before."""
        self._pass, self._skip = number, skip
        self._seed_pass()  # a loader draws the seeds of new workers before it asks for batches

    def __iter__(self) -> Iterator[Any]:
        # runs when the first batch is asked for: whatever the loader drew by then, the order is the same
        self._seed_pass()
        skip, self._skip = self._skip, 0
        for number, batch in enumerate(self._batches):
            if number >= skip:
                yield batch

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._batches, name)

    def _seed_pass(self) -> None:
        self._generator.manual_seed((self._seed * 1_000_003 + self._pass) % 2**63)

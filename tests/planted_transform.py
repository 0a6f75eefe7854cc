"""A transform that sleeps, and a collate function that writes down how long: a busy machine wakes late.

Figures are of the steps that count, so what was written down is read of their batches alone: on a busy
machine those of the start sleep several milliseconds longer or shorter than the rest.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch.utils.data import default_collate, get_worker_info

PLANTED_S = 0.01
_took_s: list[float] = []  # of this process, of calls that are not written down yet


def sleep() -> None:
    """What is planted."""
    begun = time.perf_counter()
    time.sleep(PLANTED_S)
    _took_s.append(time.perf_counter() - begun)


class Planted:
    """Sleeps and does nothing else, so that what is written down is all that it took."""

    def __call__(self, image: Any) -> Any:
        sleep()
        return image


class WriteDown:
    """A collate function: a line for a batch, with its worker and what was slept for each image."""

    def __init__(self, log: str | Path, collate: Callable[[list[Any]], Any] = default_collate) -> None:
        self.log, self.collate = Path(log), collate

    def __call__(self, images: list[Any]) -> Any:
        worker = get_worker_info()
        taken = _took_s[-len(images) :]
        _took_s.clear()
        with self.log.open("a") as file:
            file.write(" ".join(map(str, (0 if worker is None else worker.id, *taken))) + "\n")
        return self.collate(images)


def read_ms(log: Path, workers: int, steps: Iterable[int]) -> list[float]:
    """Of every image of these steps: workers make batches in turns, and each one its own in order."""
    made: defaultdict[int, list[list[float]]] = defaultdict(list)
    for line in log.read_text().splitlines():
        worker, *taken = line.split()
        made[int(worker)].append([float(one) * 1e3 for one in taken])
    every = max(1, workers)
    return [one for step in steps for one in made[step % every][step // every]]

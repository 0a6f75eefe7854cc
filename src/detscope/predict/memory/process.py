"""From reserved memory to what the process holds: a few numbers fitted from samples.

A process holds its context and libraries besides what the allocator reserved; it never holds less than when
the network was built, and cannot hold more than the device has, where some came up to that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
_ROUNDS = 30


@dataclass(frozen=True)
class ProcessTerm:
    """process = offset + slope x reserved, within floor and ceiling; bytes."""

    offset_bytes: float
    slope: float
    floor_bytes: float
    ceiling_bytes: float

    def apply(self, reserved: Array) -> Array:
        """Bytes of the process."""
        free = self.offset_bytes + self.slope * reserved
        return np.asarray(np.clip(free, self.floor_bytes, self.ceiling_bytes))

    def unbounded(self, reserved: Array) -> Array:
        """What the process would hold on a larger device."""
        free = self.offset_bytes + self.slope * reserved
        return np.asarray(np.maximum(free, self.floor_bytes))

    def to_plain(self) -> dict[str, float]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, float]) -> ProcessTerm:
        """Back from JSON."""
        return cls(**{name: float(value) for name, value in plain.items()})


def fit_process(reserved: Sequence[float] | Array, process: Sequence[float] | Array) -> ProcessTerm:
    """Least relative deviations between floor and ceiling, which are what is hardly ever passed."""
    known, truth = np.asarray(reserved, dtype=float), np.asarray(process, dtype=float)
    floor, highest = (float(value) for value in np.quantile(truth, (0.05, 0.99)))
    ceiling = highest if _full(known, truth, highest) else float("inf")
    inside = (truth > 1.03 * floor) & (truth < 0.98 * ceiling)
    if inside.sum() < 3:
        return ProcessTerm(float(np.median(truth - known)), 1.0, float(truth.min()), float("inf"))
    columns = np.column_stack([np.ones(inside.sum()), known[inside]]) / truth[inside][:, None]
    weights = np.ones(int(inside.sum()))
    found = np.zeros(2)
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        found = np.linalg.lstsq(columns * root[:, None], root, rcond=None)[0]
        weights = 1 / np.maximum(np.abs(columns @ found - 1), 0.005)
    return ProcessTerm(float(found[0]), float(found[1]), floor, ceiling)


def _full(reserved: Array, process: Array, highest: float) -> bool:
    """Whether the device's memory ended there: many hold the same, however much they reserved."""
    top = reserved[process >= 0.98 * highest]
    return len(top) >= max(5, 0.05 * len(process)) and bool(top.max() >= 1.1 * top.min())

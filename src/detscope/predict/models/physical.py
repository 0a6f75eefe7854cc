"""Latency as physics has it: the device's time is a sum over operations, the host's a sum over calls.

Whichever is longer is the step. Coefficients (milliseconds per billion multiplications or elements of each
kernel class) are non-negative and fitted to relative errors. Where two classes always occur together the data
cannot tell them apart, and the penalty on each term's share lets them share the time instead of giving all of
it to one: that is what makes the model usable on a network it has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.predict.layers.graph import LayerGraph
from detscope.predict.models.kernels import TERMS, StepCost, Tiles, fairly_left_out, step_cost
from detscope.predict.samples import Case, Sample
from detscope.predict.models.solvers import non_negative_least_squares

Array = npt.NDArray[np.float64]

TILES = (Tiles(32, 32, 32), Tiles(32, 64, 32), Tiles(32, 64, 64))
PENALTIES = (0.001, 0.003, 0.01, 0.03, 0.1)
_ROUNDS = 12
_SMALLEST_ERROR = 0.03  # below it, errors weigh alike


@dataclass(frozen=True)
class PhysicalModel:
    """Coefficients in ms; see `kernels.TERMS`."""

    device_ms: tuple[float, ...]
    call_ms: float
    step_ms: float
    tiles: Tiles
    training: bool = True
    penalty: float = 0.0

    def parts(self, cases: Sequence[Case]) -> tuple[Array, Array]:
        """The device's and the host's milliseconds."""
        terms, calls = _matrix(cases, self.tiles, self.training)
        return terms @ np.array(self.device_ms), calls @ np.array([self.call_ms, self.step_ms])

    def predict(self, cases: Sequence[Case]) -> Array:
        """Milliseconds of each case."""
        device, host = self.parts(cases)
        return np.maximum(device, host)

    def shares(self, case: Case) -> dict[str, float]:
        """Where the device's milliseconds go, by kernel class."""
        terms, _ = _matrix([case], self.tiles, self.training)
        return dict(zip(TERMS, (terms[0] * np.array(self.device_ms)).tolist(), strict=True))

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> PhysicalModel:
        """Back from JSON."""
        device_ms = tuple(float(value) for value in plain["device_ms"])
        tiles = Tiles(**{name: int(size) for name, size in plain["tiles"].items()})
        if len(device_ms) != len(TERMS) or min(tiles.pointwise, tiles.winograd, tiles.other) < 1:
            raise ValueError(f"{len(device_ms)} terms with {tiles}")
        numbers = {name: float(plain.get(name, 0.0)) for name in ("call_ms", "step_ms", "penalty")}
        return cls(device_ms, tiles=tiles, training=bool(plain.get("training", True)), **numbers)


@lru_cache(maxsize=20000)
def _cost(graph: LayerGraph, batch: int, tiles: Tiles, training: bool) -> StepCost:
    return step_cost(graph, batch, tiles, training=training)


def _matrix(cases: Sequence[Case], tiles: Tiles, training: bool) -> tuple[Array, Array]:
    costs = [_cost(case.graph, case.batch, tiles, training) for case in cases]
    return np.array([cost.terms for cost in costs]), np.array([[cost.calls, 1.0] for cost in costs])


def fit_physical(
    samples: Sequence[Sample], tiles: Tiles, penalty: float, *, training: bool = True
) -> PhysicalModel:
    """Coefficients for measured latencies; steps that the host bounds are told apart from the others."""
    terms, calls = _matrix([one.case for one in samples], tiles, training)
    truth = np.array([one.latency_ms for one in samples], dtype=float)
    batches = np.array([one.case.batch for one in samples])
    by_host = batches <= 2  # a first guess
    weights = np.ones(len(truth))
    device, host = np.zeros(len(TERMS)), np.zeros(2)
    for _ in range(_ROUNDS):
        if (~by_host).sum() > 2:
            device = _solve(terms[~by_host], truth[~by_host], weights[~by_host], penalty)
            # the penalty pulls all terms down; one factor for all brings their sum back
            device *= np.median(truth[~by_host] / np.maximum(terms[~by_host] @ device, 1e-9))
        if by_host.sum() > 2:
            host = _solve(calls[by_host], truth[by_host], weights[by_host], 0.0)
        device_ms, host_ms = terms @ device, calls @ host
        by_host = host_ms > device_ms
        errors = np.abs(np.maximum(device_ms, host_ms) / truth - 1)
        weights = 1 / np.sqrt(np.maximum(errors, _SMALLEST_ERROR))
    return PhysicalModel(tuple(device.tolist()), float(host[0]), float(host[1]), tiles, training, penalty)


def _solve(terms: Array, truth: Array, weights: Array, penalty: float) -> Array:
    relative = terms / truth[:, None]
    scale = np.sqrt((relative**2).mean(axis=0)) + 1e-12
    weights = weights / weights.mean()
    count = terms.shape[1]
    rows = np.vstack([relative / scale * weights[:, None], np.sqrt(penalty * len(truth)) * np.eye(count)])
    found = non_negative_least_squares(rows, np.concatenate([weights, np.zeros(count)]), 20000)
    return np.asarray(found / scale)


def choose_physical(samples: Sequence[Sample], *, training: bool = True) -> PhysicalModel:
    """Tiles and penalty by leaving out one network after the other (with one network: one level)."""
    groups = _groups(samples)
    best = min(
        product(TILES, PENALTIES),
        key=lambda choice: _left_out_error(samples, groups, choice[0], choice[1], training),
    )
    return fit_physical(samples, *best, training=training)


def _groups(samples: Sequence[Sample]) -> list[object]:
    networks = [one.network for one in samples]
    return list(networks) if len(set(networks)) > 1 else [one.level for one in samples]


def _left_out_error(
    samples: Sequence[Sample], groups: list[object], tiles: Tiles, penalty: float, training: bool
) -> float:
    errors = []
    fair = {groups[place] for place in fairly_left_out(samples)}
    for left_out in sorted(fair, key=str):
        kept = [one for one, group in zip(samples, groups, strict=True) if group != left_out]
        asked = [one for one, group in zip(samples, groups, strict=True) if group == left_out]
        if not kept:
            return 0.0
        model = fit_physical(kept, tiles, penalty, training=training)
        truth = np.array([one.latency_ms for one in asked], dtype=float)
        predicted = np.maximum(model.predict([one.case for one in asked]), 1e-9)
        errors.append(float(np.abs(np.log(predicted / truth)).mean()))
    return float(np.mean(errors))

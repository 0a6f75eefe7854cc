"""Latency as physics has it: the device's time is a sum over operations, the host's a sum over calls.

Whichever is longer is the step. Coefficients (milliseconds per billion multiplications or elements of each
kernel class) are non-negative and fitted to relative errors. Where two classes always occur together the data
cannot tell them apart, and the penalty on each term's share lets them share the time instead of giving all of
it to one: that is what makes the model usable on a network it has not seen.

Counts are per step: a training step runs forward, the gradient of the input and that of the weights. Matrix
kernels work in tiles, so channels are rounded up to the tile of their class. Billions of multiplications and
of elements, so that all terms are of one size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache, partial
from itertools import product
from math import ceil, prod

import numpy as np

from detscope.predict.layers import kinds
from detscope.predict.layers.graph import LayerGraph, Operation
from detscope.predict.models.choice import average_groups, group_samples, leave_out
from detscope.predict.models.residual import solve_non_negative
from detscope.predict.samples import Array, StepCase, StepSample

GIGA = 1e9
FEW_IMAGES = 16  # below it, libraries choose other kernels for strided and large windows
TERMS = (
    "pointwise multiplications",
    "3x3 multiplications",
    "other dense multiplications",
    "other dense multiplications, few images",
    "depthwise multiplications",
    "convolution traffic",
    "other traffic",
)
PENALTIES = (0.001, 0.003, 0.01, 0.03, 0.1)
_ROUNDS = 12
_SMALLEST_ERROR = 0.03  # below it, errors weigh alike


@dataclass(frozen=True)
class Tiles:
    """Channels of one tile of the matrix kernels."""

    pointwise: int = 32
    winograd: int = 64
    other: int = 32


@dataclass(frozen=True)
class StepCost:
    """Terms of the device's time, and what the host does: calls and nothing else."""

    terms: tuple[float, ...]
    calls: int


@lru_cache(maxsize=4096)
def list_kernel_classes(graph: LayerGraph) -> frozenset[str]:
    """The kernel classes that a network uses, at any batch size."""
    terms = {
        term
        for operation in graph.operations
        for term, _ in count_operation_cost(operation, FEW_IMAGES, Tiles(), training=True)
    }
    return frozenset(terms)


def find_fair_places(samples: Sequence[StepSample]) -> list[int]:
    """Places of samples whose network uses no kernel class that the other networks lack.

    Leaving out the only network with depthwise convolutions asks for what nothing could know. All places
    where that would leave none.
    """
    networks: dict[str, set[str]] = {}
    for one in samples:
        networks.setdefault(one.network, set()).update(list_kernel_classes(one.case.graph))
    fair = {
        name
        for name, classes in networks.items()
        if classes <= set().union(*(found for other, found in networks.items() if other != name))
    }
    return [place for place, one in enumerate(samples) if one.network in fair or not fair]


@lru_cache(maxsize=20000)
def count_step_cost(graph: LayerGraph, batch: int, tiles: Tiles, *, training: bool = True) -> StepCost:
    """The terms of a training step or of one inference."""
    total = dict.fromkeys(TERMS, 0.0)
    for operation in graph.operations:
        for term, amount in count_operation_cost(operation, batch, tiles, training=training):
            total[term] += amount / GIGA
    if training:  # the optimizer reads and writes parameters, gradients and momentum
        total["other traffic"] += 8 * sum(graph.parameter_sizes) / GIGA
    return StepCost(tuple(total.values()), len(graph.operations))


def count_operation_cost(
    operation: Operation, batch: int, tiles: Tiles, *, training: bool
) -> Iterable[tuple[str, float]]:
    """Terms and amounts of one operation."""
    layer = operation.convolution
    if layer is None:
        yield "other traffic", batch * _count_traffic(operation, training=training)
        return
    passes, window = 3 if training else 1, prod(layer.kernel)
    places = batch * prod(operation.output_shape[2:])
    traffic = passes * batch * (operation.input_elements + operation.output_elements)
    if layer.groups > 1:
        per_output = window * layer.in_channels // layer.groups
        yield "depthwise multiplications", passes * places * layer.out_channels * per_output
        yield "other traffic", traffic
        return
    yield "convolution traffic", traffic
    if layer.kernel == (3, 3) and layer.stride == (1, 1):
        # Winograd multiplies transformed tiles: both channel counts are sides of its matrices
        sides = _round_up(layer.out_channels, tiles.winograd) * _round_up(layer.in_channels, tiles.winograd)
        yield "3x3 multiplications", passes * places * sides * window
        return
    # each pass has another pair of sides that are rounded up: forward, to the input, to the weights
    tile = tiles.pointwise if window == 1 else tiles.other
    inner, outer = layer.in_channels * window, layer.out_channels
    wide, deep = _round_up(outer, tile), _round_up(inner, tile)
    amount = places * (wide * inner + (outer * deep + wide * deep if training else 0))
    if window == 1:
        yield "pointwise multiplications", amount
        return
    yield "other dense multiplications", amount
    if batch < FEW_IMAGES:
        yield "other dense multiplications, few images", amount


def _round_up(value: int, tile: int) -> int:
    return ceil(value / tile) * tile


def _count_traffic(operation: Operation, *, training: bool) -> float:
    """Elements read and written per image: batch norm reads its input twice, and so on."""
    into, out = operation.input_elements, operation.output_elements
    forward, backward = {
        kinds.BATCH_NORM: (3 * out, 5 * out),
        kinds.RELU: (2 * out, 3 * out),
        kinds.MAX_POOL: (into + 3 * out, into + 3 * out),
        kinds.AVERAGE_POOL: (into, into),
        kinds.ADD: (3 * out, 3 * out),
        kinds.CONCATENATE: (2 * out, 2 * out),
        kinds.LINEAR: (into + out + sum(operation.parameters), 2 * (into + out + sum(operation.parameters))),
    }.get(operation.kind, (into + out, 2 * (into + out)))
    return float(forward + (backward if training else 0))


TILES = (Tiles(32, 32, 32), Tiles(32, 64, 32), Tiles(32, 64, 64))


@dataclass(frozen=True)
class PhysicalModel:
    """Coefficients in ms; see `TERMS`."""

    device_ms: tuple[float, ...]
    call_ms: float
    step_ms: float
    tiles: Tiles
    training: bool = True
    penalty: float = 0.0

    def __post_init__(self) -> None:
        """Refuse other terms than ours, which a file may hold."""
        if len(self.device_ms) != len(TERMS) or min(astuple(self.tiles)) < 1:
            raise ValueError(f"{len(self.device_ms)} terms with {self.tiles}")

    def split_parts(self, cases: Sequence[StepCase]) -> tuple[Array, Array]:
        """The device's and the host's milliseconds."""
        terms, calls = _collect_costs(cases, self.tiles, self.training)
        return terms @ np.array(self.device_ms), calls @ np.array([self.call_ms, self.step_ms])

    def predict(self, cases: Sequence[StepCase]) -> Array:
        """Milliseconds of each case."""
        device, host = self.split_parts(cases)
        return np.maximum(device, host)

    def share_by_class(self, case: StepCase) -> dict[str, float]:
        """Where the device's milliseconds go, by kernel class."""
        terms, _ = _collect_costs([case], self.tiles, self.training)
        return dict(zip(TERMS, (terms[0] * np.array(self.device_ms)).tolist(), strict=True))

    def sum_by_stage(self, case: StepCase) -> dict[str, float]:
        """The device's milliseconds by the stages of a network."""
        found = {}
        for stage in dict.fromkeys(operation.stage for operation in case.graph.operations):
            own = tuple(one for one in case.graph.operations if one.stage == stage)
            part = StepCase(replace(case.graph, operations=own), case.batch)
            found[stage] = float(self.split_parts([part])[0][0])
        return found


def _collect_costs(cases: Sequence[StepCase], tiles: Tiles, training: bool) -> tuple[Array, Array]:
    costs = [count_step_cost(case.graph, case.batch, tiles, training=training) for case in cases]
    return np.array([cost.terms for cost in costs]), np.array([[cost.calls, 1.0] for cost in costs])


def fit_physical(
    samples: Sequence[StepSample], tiles: Tiles, penalty: float, *, training: bool = True
) -> PhysicalModel:
    """Coefficients for measured latencies; steps that the host bounds are told apart from the others."""
    terms, calls = _collect_costs([one.case for one in samples], tiles, training)
    truth = np.array([one.latency_ms for one in samples], dtype=float)
    batches = np.array([one.case.batch for one in samples])
    by_host = batches <= 2  # a first guess
    weights = np.ones(len(truth))
    device, host = np.zeros(len(TERMS)), np.zeros(2)
    for _ in range(_ROUNDS):
        if (~by_host).sum() > 2:
            device = _solve_relative(terms[~by_host], truth[~by_host], weights[~by_host], penalty)
            # the penalty pulls all terms down; one factor for all brings their sum back
            device *= np.median(truth[~by_host] / np.maximum(terms[~by_host] @ device, 1e-9))
        if by_host.sum() > 2:
            host = _solve_relative(calls[by_host], truth[by_host], weights[by_host], 0.0)
        device_ms, host_ms = terms @ device, calls @ host
        by_host = host_ms > device_ms
        errors = np.abs(np.maximum(device_ms, host_ms) / truth - 1)
        weights = 1 / np.sqrt(np.maximum(errors, _SMALLEST_ERROR))
    return PhysicalModel(tuple(device.tolist()), float(host[0]), float(host[1]), tiles, training, penalty)


def _solve_relative(terms: Array, truth: Array, weights: Array, penalty: float) -> Array:
    relative = terms / truth[:, None]
    scale = np.sqrt((relative**2).mean(axis=0)) + 1e-12
    weights = weights / weights.mean()
    count = terms.shape[1]
    rows = np.vstack([relative / scale * weights[:, None], np.sqrt(penalty * len(truth)) * np.eye(count)])
    found = solve_non_negative(rows, np.concatenate([weights, np.zeros(count)]), 20000)
    return np.asarray(found / scale)


def choose_physical(samples: Sequence[StepSample], *, training: bool = True) -> PhysicalModel:
    """Tiles and penalty by leaving out one network after the other (with one network: one level)."""
    groups = group_samples(samples)
    fair = {groups[place] for place in find_fair_places(samples)}

    def judge(choice: tuple[Tiles, float]) -> float:
        if len(set(groups)) == 1:  # nothing can be left out
            return 0.0
        fit = partial(fit_physical, tiles=choice[0], penalty=choice[1], training=training)
        errors = leave_out(samples, groups, "latency_ms", fit, fair)
        known = np.flatnonzero(~np.isnan(errors))
        return average_groups(errors[known], [groups[place] for place in known])

    return fit_physical(samples, *min(product(TILES, PENALTIES), key=judge), training=training)


@dataclass(frozen=True)
class LatencyCalibration:
    """The factor on the device's time and how many samples it comes from."""

    factor: float
    samples: int


def calibrate_latency(
    model: PhysicalModel, samples: Sequence[StepSample]
) -> tuple[PhysicalModel, LatencyCalibration]:
    """Scale the device's part by the median ratio of the samples that it bounds; the host's part stays."""
    device, host = model.split_parts([one.case for one in samples])
    truth = np.array([one.latency_ms for one in samples], dtype=float)
    bound = device > host
    if not bound.any():
        return model, LatencyCalibration(1.0, 0)
    factor = float(np.median(truth[bound] / device[bound]))
    scaled = tuple(value * factor for value in model.device_ms)
    return replace(model, device_ms=scaled), LatencyCalibration(factor, int(bound.sum()))

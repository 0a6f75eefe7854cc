"""What every operation costs a device, as terms of a sum: multiplications and memory traffic by kernel class.

Counts are per step: a training step runs forward, the gradient of the input and that of the weights.
Matrix kernels work in tiles, so channels are rounded up to the tile of their class. Billions of
multiplications and of elements, so that all terms are of one size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from detscope.predict.layers.graph import (
    ADD,
    AVERAGE_POOL,
    BATCH_NORM,
    CONCATENATE,
    LINEAR,
    MAX_POOL,
    RELU,
    LayerGraph,
    Operation,
)
from detscope.predict.samples import Sample

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

    @property
    def by_name(self) -> dict[str, float]:
        """Terms by their names."""
        return dict(zip(TERMS, self.terms, strict=True))


@lru_cache(maxsize=4096)
def kernel_classes(graph: LayerGraph) -> frozenset[str]:
    """The kernel classes that a network uses, at any batch size."""
    terms = {
        term
        for operation in graph.operations
        for term, _ in operation_cost(operation, FEW_IMAGES, Tiles(), training=True)
    }
    return frozenset(terms)


def fairly_left_out(samples: Sequence[Sample]) -> list[int]:
    """Places of samples whose network uses no kernel class that the other networks lack.

    Leaving out the only network with depthwise convolutions asks for what nothing could know. All places
    where that would leave none.
    """
    networks: dict[str, set[str]] = {}
    for one in samples:
        networks.setdefault(one.network, set()).update(kernel_classes(one.case.graph))
    fair = {
        name
        for name, classes in networks.items()
        if classes <= set().union(*(found for other, found in networks.items() if other != name))
    }
    return [place for place, one in enumerate(samples) if one.network in fair or not fair]


def step_cost(graph: LayerGraph, batch: int, tiles: Tiles, *, training: bool = True) -> StepCost:
    """The terms of a training step or of one inference."""
    total = dict.fromkeys(TERMS, 0.0)
    for operation in graph.operations:
        for term, amount in operation_cost(operation, batch, tiles, training=training):
            total[term] += amount / GIGA
    if training:  # the optimizer reads and writes parameters, gradients and momentum
        total["other traffic"] += 8 * sum(graph.parameters) / GIGA
    return StepCost(tuple(total.values()), len(graph.operations))


def operation_cost(
    operation: Operation, batch: int, tiles: Tiles, *, training: bool
) -> Iterable[tuple[str, float]]:
    """Terms and amounts of one operation."""
    if operation.convolution is not None:
        yield from _convolution(operation, batch, tiles, passes=3 if training else 1)
    else:
        yield "other traffic", batch * _traffic(operation, training=training)


def _convolution(
    operation: Operation, batch: int, tiles: Tiles, *, passes: int
) -> Iterable[tuple[str, float]]:
    layer = operation.convolution
    assert layer is not None
    window = prod(layer.kernel)
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
        sides = _up(layer.out_channels, tiles.winograd) * _up(layer.in_channels, tiles.winograd)
        yield "3x3 multiplications", passes * places * sides * window
        return
    pointwise = window == 1
    amount = places * _dense(layer.in_channels * window, layer.out_channels, passes, tiles, pointwise)
    if pointwise:
        yield "pointwise multiplications", amount
        return
    yield "other dense multiplications", amount
    if batch < FEW_IMAGES:
        yield "other dense multiplications, few images", amount


def _dense(inner: int, outer: int, passes: int, tiles: Tiles, pointwise: bool) -> float:
    """Each pass has another pair of sides that are rounded up: forward, to the input, to the weights."""
    tile = tiles.pointwise if pointwise else tiles.other
    wide, deep = _up(outer, tile), _up(inner, tile)
    return (wide * inner, wide * inner + outer * deep + wide * deep)[passes == 3]


def _up(value: int, tile: int) -> int:
    return ceil(value / tile) * tile


def _traffic(operation: Operation, *, training: bool) -> float:
    """Elements read and written per image: batch norm reads its input twice, and so on."""
    into, out = operation.input_elements, operation.output_elements
    forward, backward = {
        BATCH_NORM: (3 * out, 5 * out),
        RELU: (2 * out, 3 * out),
        MAX_POOL: (into + 3 * out, into + 3 * out),
        AVERAGE_POOL: (into, into),
        ADD: (3 * out, 3 * out),
        CONCATENATE: (2 * out, 2 * out),
        LINEAR: (into + out + sum(operation.parameters), 2 * (into + out + sum(operation.parameters))),
    }.get(operation.kind, (into + out, 2 * (into + out)))
    return float(forward + (backward if training else 0))

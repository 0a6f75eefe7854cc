"""The 56 training and 15 inference features of the older toolflow, summed over convolutions.

They describe tensors, im2col, GEMM, FFT and Winograd implementations of a convolution, forward (F), backward
to the input (X) and to the weights (W). The formulas are kept as they were used, oddities included: this is
the baseline to beat. A rectangular kernel or image counts by its geometric mean, exact for square ones. The
method is unchanged too: 300 extremely randomised trees (scikit-learn's).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2, sqrt
from typing import Any

import numpy as np

from detscope.predict.layers.graph import Convolution, LayerGraph, Operation
from detscope.predict.samples import Array, StepCase, StepSample

TRAINING_FEATURES = 56
INFERENCE_FEATURES = 15
_TILES = ((4, 3), (3, 2))
TREES = 300
_GROUPS = (  # how many, what
    (5, "size of weights, inputs and outputs"),
    (7, "im2col columns"),
    (3, "multiplications"),
    (9, "FFT memory"),
    (4, "FFT operations"),
    (14, "Winograd memory"),
    (14, "Winograd operations"),
)


@lru_cache(maxsize=20000)
def sum_older_features(graph: LayerGraph, batch: int, training: bool = True) -> Array:
    """All 56 of training or all 15 of inference, for one batch size."""
    total = np.zeros(TRAINING_FEATURES if training else INFERENCE_FEATURES)
    for operation in graph.operations:
        if operation.convolution is not None:
            layer = _OlderConvolution(operation, operation.convolution, batch)
            total += np.array(layer.list_training() if training else layer.list_inference())
    return total


class _OlderConvolution:
    """One convolution in the older toolflow's letters: names of its published formulas, not ours."""

    def __init__(self, operation: Operation, convolution: Convolution, batch: int) -> None:
        self.b = float(batch)
        self.ic, self.oc = float(convolution.in_channels), float(convolution.out_channels)
        self.e = self.ic / convolution.groups
        self.k = sqrt(convolution.kernel[0] * convolution.kernel[1])
        self.ip = sqrt(operation.input_shapes[0][2] * operation.input_shapes[0][3])
        self.op = sqrt(operation.output_shape[2] * operation.output_shape[3])

    def list_training(self) -> list[float]:
        return [
            *self._count_tensors(2.0),
            *self._count_columns(),
            *self._count_products(),
            *self._fft_memory(),
            *self._fft_operations(),
            *(value for tile in _TILES for value in self._winograd_memory(*tile)),
            *(value for tile in _TILES for value in self._winograd_operations(*tile)),
        ]

    def list_inference(self) -> list[float]:
        weights, _, inputs, outputs, _ = self._count_tensors(1.0)
        columns, fft = self._count_columns(), self._fft_memory()
        return [
            weights,
            inputs,
            outputs,
            weights + inputs + outputs,
            columns[0],
            columns[1],
            self._count_products()[0],
            fft[0],
            fft[1],
            fft[5],
            self._fft_operations()[0],
            *(self._winograd_memory(*tile)[0] for tile in _TILES),
            *(self._winograd_operations(*tile)[0] for tile in _TILES),
        ]

    def _count_tensors(self, copies: float) -> list[float]:
        weights = self.oc * self.e * self.k**2
        inputs = copies * self.b * self.ic * self.ip**2
        outputs = copies * self.b * self.oc * self.op**2
        return [
            weights,
            self.b * weights,
            inputs,
            outputs,
            weights + self.b * weights + inputs + outputs,
        ]

    def _count_columns(self) -> list[float]:
        out_places, in_places, window = self.b * self.op**2, self.b * self.ip**2, self.k**2
        forward = out_places * window * self.ic
        to_input = in_places * window * self.ic
        to_weights = out_places * window * self.e
        return [
            out_places,
            forward,
            in_places,
            to_input,
            to_weights,
            forward + to_input + to_weights,
            2 * out_places + in_places,
        ]

    def _count_products(self) -> list[float]:
        forward = self.b * self.oc * self.op**2 * self.k**2 * self.e
        to_input = self.b * self.ic * self.ip**2 * self.k**2 * self.oc
        return [forward, to_input, 2 * forward + to_input]

    def _fft_memory(self) -> list[float]:
        plane_in, plane_out = self.ip * (1 + self.ip), self.op * (1 + self.op)
        weights_f, inputs_f = plane_in * self.oc * self.e, plane_in * self.b * self.ic
        outputs_w = plane_in * self.b * self.oc
        weights_x, outputs_x = plane_out * self.oc * self.e, plane_out * self.b * self.oc
        pairs = [inputs_f + weights_f, outputs_x + weights_x, outputs_w + inputs_f]
        return [weights_f, inputs_f, outputs_w, weights_x, outputs_x, *pairs, sum(pairs)]

    def _fft_operations(self) -> list[float]:
        transforms = self.b * self.ic + self.b * self.oc + self.oc * self.e
        product = self.b * self.oc * self.ic
        forward = self.ip**2 * log2(self.ip) * transforms + product * self.ip**2
        to_input = self.op**2 * log2(self.op) * transforms + product * self.op**2
        to_weights = self.ip * log2(self.ip**2) * transforms + product * self.ip**2
        return [forward, to_input, to_weights, forward + to_input + to_weights]

    def _winograd_memory(self, m: int, r: int) -> list[float]:
        area = (m + r - 1) ** 2
        tiles_in, tiles_out = ceil(self.ip / m) ** 2, ceil(self.op / m) ** 2
        return _with_sums(
            3 * self.b * self.oc * area * tiles_in,
            3 * self.b * self.ic * area * tiles_out,
            3 * self.b * self.oc * self.e * area * tiles_in,
        )

    def _winograd_operations(self, m: int, r: int) -> list[float]:
        area = (m + r - 1) ** 2
        tiles_in, tiles_out = ceil(self.ip / m) ** 2, ceil(self.op / m) ** 2
        windows = ceil(self.k / r) ** 2
        return _with_sums(
            self.b * self.oc * self.e * tiles_in * windows * area,
            self.b * self.ic * self.oc * tiles_out * windows * area,
            self.b * self.oc * self.e * tiles_in * ceil(self.op / r) ** 2 * area,
        )


def _with_sums(forward: float, to_input: float, to_weights: float) -> list[float]:
    return [
        forward,
        to_input,
        to_weights,
        forward + to_input,
        forward + to_weights,
        to_input + to_weights,
        forward + to_input + to_weights,
    ]


def collect_older_features(cases: Sequence[StepCase], *, training: bool = True) -> Array:
    """One row of the older features per case."""
    return np.array([sum_older_features(case.graph, case.batch, training) for case in cases])


@dataclass(frozen=True)
class TreesModel:
    """A fitted forest; `forest` is scikit-learn's."""

    forest: Any
    training: bool = True

    def predict(self, cases: Sequence[StepCase]) -> Array:
        """The target of each case."""
        return np.asarray(self.forest.predict(collect_older_features(cases, training=self.training)))


def fit_trees(
    samples: Sequence[StepSample], target: str, *, training: bool = True, seed: int = 0, count: int = TREES
) -> TreesModel:
    """ExtraTreesRegressor(300), otherwise its defaults; the seed is fixed."""
    from sklearn.ensemble import ExtraTreesRegressor  # type: ignore[import-untyped]

    forest = ExtraTreesRegressor(n_estimators=count, random_state=seed)
    forest.fit(
        collect_older_features([one.case for one in samples], training=training),
        np.array([one.get_value(target) for one in samples], dtype=float),
    )
    return TreesModel(forest, training)


def group_features(numbers: Iterable[int]) -> list[str]:
    """The groups that features belong to, with how many of each: `multiplications (2 of 3)`."""
    wanted = set(numbers)
    found, first = [], 0
    for count, what in _GROUPS:
        inside = len(wanted & set(range(first, first + count)))
        if inside:
            found.append(f"{what} ({inside} of {count})")
        first += count
    return found

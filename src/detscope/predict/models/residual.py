"""What a physical model leaves over, learnt as a smooth function of the network: a Gaussian process.

Near what was measured it corrects; far from it, it falls back to its mean. It is plain numbers, no code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.predict.models.solvers import solved_positive

Array = npt.NDArray[np.float64]

_NOISE = 0.03
_LARGEST = 0.5  # of a logarithm: beyond it a measurement is an accident (swapping), not a trend


@dataclass(frozen=True)
class SmoothResidual:
    """A Matern 3/2 process over standardised features; values are logarithms of ratios."""

    centre: Array
    scale: Array
    places: Array
    weights: Array
    mean: float

    def predict(self, features: Array) -> Array:
        """The correction at each row of features."""
        here = (features - self.centre) / self.scale
        return np.asarray(self.mean + _kernel(here, self.places) @ self.weights)

    def distances(self, features: Array) -> Array:
        """How far each row is from the nearest one that was measured."""
        here = (features - self.centre) / self.scale
        return np.asarray(_distances(here, self.places).min(axis=1))

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> SmoothResidual:
        """Back from JSON."""
        centre, scale, places, weights = (
            np.array(plain[name], dtype=float) for name in ("centre", "scale", "places", "weights")
        )
        if centre.ndim != 1 or centre.shape != scale.shape or places.shape != weights.shape + centre.shape:
            raise ValueError("a residual whose parts are of different widths")
        return cls(centre, scale, places, weights, float(plain["mean"]))


def fit_residual(features: Array, residual: Array) -> SmoothResidual:
    """One residual; see `fit_residuals`."""
    return fit_residuals(features, [residual])[0]


def fit_residuals(features: Array, residuals: Sequence[Array]) -> list[SmoothResidual]:
    """Several over the same features, for the price of one.

    One fixed length, the root of the number of features: how far apart standardised rows usually are.
    """
    centre, scale = features.mean(axis=0), features.std(axis=0) + 1e-9
    places = (features - centre) / scale
    clipped = np.clip(np.column_stack(list(residuals)), -_LARGEST, _LARGEST)
    means = clipped.mean(axis=0)
    matrix = _kernel(places, places) + _NOISE * np.eye(len(clipped))
    weights = solved_positive(matrix, clipped - means)
    return [
        SmoothResidual(centre, scale, places, weights[:, place], float(mean))
        for place, mean in enumerate(means)
    ]


def _distances(one: Array, other: Array) -> Array:
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None, :] - 2 * one @ other.T
    return np.asarray(np.sqrt(np.maximum(squares, 0)))


def _kernel(one: Array, other: Array) -> Array:
    scaled = np.sqrt(3) * _distances(one, other) / np.sqrt(one.shape[1])
    return np.asarray((1 + scaled) * np.exp(-scaled))

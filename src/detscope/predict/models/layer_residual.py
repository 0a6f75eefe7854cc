"""What a class's roofline leaves over, as a smooth function of a layer's sizes: a small Gaussian process.

Far from every layer that was measured it is zero, and the roofline stands alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.predict.models.solvers import inverse_positive

Array = npt.NDArray[np.float64]

_LENGTHS = (0.5, 1.0, 2.0, 4.0)
_NOISES = (0.01, 0.03, 0.1, 0.3, 1.0)
_LARGEST = 1.0  # of a logarithm: beyond it a measurement is an accident
_NARROWEST = 0.25  # features that hardly vary say little


@dataclass(frozen=True, eq=False)
class LayerResidual:
    """A Matern 3/2 process over standardised features; values are logarithms of ratios."""

    centre: Array
    scale: Array
    places: Array
    weights: Array
    length: float
    noise: float

    def predict(self, features: Array) -> Array:
        """The correction at each row of features."""
        here = (features - self.centre) / self.scale
        found = _kernel(here, self.places, self.length) @ self.weights
        return np.asarray(np.clip(found, -_LARGEST, _LARGEST))

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> LayerResidual:
        """Back from JSON."""
        centre, scale, weights = (
            np.array(plain[name], dtype=float) for name in ("centre", "scale", "weights")
        )
        if centre.ndim != 1 or centre.shape != scale.shape or weights.ndim != 1:
            raise ValueError("a residual whose parts are of different widths")
        places = np.array(plain["places"], dtype=float).reshape(len(weights), len(centre))
        return cls(centre, scale, places, weights, float(plain["length"]), float(plain["noise"]))


def fit_layer_residual(features: Array, residual: Array) -> tuple[LayerResidual, Array]:
    """The process whose predictions of left-out rows are best, and its errors on them."""
    centre = features.mean(axis=0)
    scale = np.maximum(features.std(axis=0), _NARROWEST)
    places = (features - centre) / scale
    wanted = np.clip(residual, -_LARGEST, _LARGEST)
    tried = []
    for length, noise in product(_LENGTHS, _NOISES):
        matrix = _kernel(places, places, length) + noise * np.eye(len(wanted))
        inverse = inverse_positive(matrix)
        weights = inverse @ wanted
        left_out = weights / np.diag(inverse)  # each row predicted from all others, in closed form
        tried.append((float(np.abs(left_out).mean()), length, noise, weights, left_out))
    _, length, noise, weights, left_out = min(tried, key=lambda one: one[0])
    return LayerResidual(centre, scale, places, weights, length, noise), np.asarray(left_out)


def _kernel(one: Array, other: Array, length: float) -> Array:
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None, :] - 2 * one @ other.T
    scaled = np.sqrt(3 * np.maximum(squares, 0)) / (length * np.sqrt(one.shape[1]))
    return np.asarray((1 + scaled) * np.exp(-scaled))

"""What a physical model leaves over, learnt as a smooth function of the network: a Gaussian process.

Near what was measured it corrects; far from it, it falls back to its mean. It is plain numbers, no code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

# DOC detscope.predict.models.residual: scipy's solvers: imported when something is fitted, because a prediction needs none and has to be quick.
# DOC detscope.predict.models.residual: What a class's roofline leaves over, as a smooth function of a layer's sizes: a small Gaussian process.
#
# Far from every layer that was measured it is zero, and the roofline stands alone.
Array = npt.NDArray[np.float64]


def non_negative_least_squares(rows: Array, wanted: Array, rounds: int | None = None) -> Array:
    """Coefficients that are not below 0; `rounds` are three per column where not said."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    return np.asarray(nnls(rows, wanted, maxiter=rounds)[0])


def least_squares(left_over: Callable[[Array], Array], start: Array) -> Array:
    """The place, searched from `start`, where the squares of what is left over are least."""
    from scipy.optimize import least_squares as search

    return np.asarray(search(left_over, start).x)


def solved_positive(matrix: Array, wanted: Array) -> Array:
    """Of a positive definite matrix."""
    from scipy.linalg import solve  # type: ignore[import-untyped]

    return np.asarray(solve(matrix, wanted, assume_a="pos"), dtype=np.float64)


def inverse_positive(matrix: Array) -> Array:
    """The inverse of a positive definite matrix."""
    from scipy.linalg import cho_factor, cho_solve

    return np.asarray(cho_solve(cho_factor(matrix), np.eye(len(matrix))))


def student_quantile(share: float, freedom: int) -> float:
    """Of Student's distribution."""
    from scipy.stats import t  # type: ignore[import-untyped]

    return float(t.ppf(share, freedom))


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


_LENGTHS = (0.5, 1.0, 2.0, 4.0)
_NOISES = (0.01, 0.03, 0.1, 0.3, 1.0)
_LARGEST_OF_LAYERS = 1.0  # of a logarithm: beyond it a measurement is an accident
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
        found = _layer_kernel(here, self.places, self.length) @ self.weights
        return np.asarray(np.clip(found, -_LARGEST_OF_LAYERS, _LARGEST_OF_LAYERS))

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
    wanted = np.clip(residual, -_LARGEST_OF_LAYERS, _LARGEST_OF_LAYERS)
    tried = []
    for length, noise in product(_LENGTHS, _NOISES):
        matrix = _layer_kernel(places, places, length) + noise * np.eye(len(wanted))
        inverse = inverse_positive(matrix)
        weights = inverse @ wanted
        left_out = weights / np.diag(inverse)  # each row predicted from all others, in closed form
        tried.append((float(np.abs(left_out).mean()), length, noise, weights, left_out))
    _, length, noise, weights, left_out = min(tried, key=lambda one: one[0])
    return LayerResidual(centre, scale, places, weights, length, noise), np.asarray(left_out)


def _layer_kernel(one: Array, other: Array, length: float) -> Array:
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None, :] - 2 * one @ other.T
    scaled = np.sqrt(3 * np.maximum(squares, 0)) / (length * np.sqrt(one.shape[1]))
    return np.asarray((1 + scaled) * np.exp(-scaled))

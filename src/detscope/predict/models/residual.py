"""What physics leaves over, learnt as a smooth function of sizes: Gaussian processes, and their solvers.

Near what was measured they correct; far from it they fall back to their mean, or to zero. They are plain
numbers, no code. Our own and not scikit-learn's GaussianProcessRegressor: that chooses its length by
likelihood where left-out rows choose here, in closed form, and a prediction would have to import it (1.6 s
measured on a busy machine). scipy too is imported only when something is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from detscope.predict.samples import Array

_NOISE = 0.03
_LARGEST = 0.5  # of a logarithm: beyond it a measurement is an accident (swapping), not a trend
_LARGEST_OF_LAYERS = 1.0
_LENGTHS = (0.5, 1.0, 2.0, 4.0)
_NOISES = (0.01, 0.03, 0.1, 0.3, 1.0)
_NARROWEST = 0.25  # features that hardly vary say little


def solve_non_negative(rows: Array, wanted: Array, rounds: int | None = None) -> Array:
    """Least squares with coefficients that are not below 0; `rounds` are three per column where not said."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    return np.asarray(nnls(rows, wanted, maxiter=rounds)[0])


def solve_least_squares(left_over: Callable[[Array], Array], start: Array) -> Array:
    """The place, searched from `start`, where the squares of what is left over are least."""
    from scipy.optimize import least_squares

    return np.asarray(least_squares(left_over, start).x)


def square_distances(one: Array, other: Array) -> Array:
    """Between all rows of two sets; rounding may leave some a little below zero."""
    return np.asarray(
        (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None, :] - 2 * one @ other.T, dtype=np.float64
    )


def _correlate(scaled: Array) -> Array:
    """Matern 3/2."""
    return np.asarray((1 + scaled) * np.exp(-scaled))


@dataclass(frozen=True)
class SmoothResidual:
    """A process over standardised features of whole networks; values are logarithms of ratios."""

    centre: Array
    scale: Array
    places: Array
    weights: Array
    mean: float

    def __post_init__(self) -> None:
        """Refuse parts that cannot belong together: they may come from a file."""
        shapes = (self.centre.shape, self.scale.shape, self.places.shape)
        if self.centre.ndim != 1 or shapes[1:] != (shapes[0], self.weights.shape + shapes[0]):
            raise ValueError("a residual whose parts are of different widths")

    def predict(self, features: Array) -> Array:
        """The correction at each row of features."""
        here = (features - self.centre) / self.scale
        return np.asarray(self.mean + _correlate_networks(here, self.places) @ self.weights)


def fit_residuals(features: Array, residuals: Sequence[Array]) -> list[SmoothResidual]:
    """Several over the same features, for the price of one.

    One fixed length, the root of the number of features: how far apart standardised rows usually are.
    """
    from scipy.linalg import solve  # type: ignore[import-untyped]

    centre, scale = features.mean(axis=0), features.std(axis=0) + 1e-9
    places = (features - centre) / scale
    clipped = np.clip(np.column_stack(list(residuals)), -_LARGEST, _LARGEST)
    means = clipped.mean(axis=0)
    matrix = _correlate_networks(places, places) + _NOISE * np.eye(len(clipped))
    weights = np.asarray(solve(matrix, clipped - means, assume_a="pos"), dtype=np.float64)
    return [
        SmoothResidual(centre, scale, places, weights[:, place], float(mean))
        for place, mean in enumerate(means)
    ]


def _correlate_networks(one: Array, other: Array) -> Array:
    distances = np.sqrt(np.maximum(square_distances(one, other), 0))
    return _correlate(np.sqrt(3) * distances / np.sqrt(one.shape[1]))


@dataclass(frozen=True, eq=False)
class LayerResidual:
    """The same over layers of one kernel class; far from every layer that was measured it is zero."""

    centre: Array
    scale: Array
    places: Array
    weights: Array
    length: float
    noise: float

    def __post_init__(self) -> None:
        """Refuse parts that cannot belong together; of no features, a file does not know how many rows."""
        if self.centre.ndim != 1 or self.centre.shape != self.scale.shape or self.weights.ndim != 1:
            raise ValueError("a residual whose parts are of different widths")
        object.__setattr__(self, "places", self.places.reshape(len(self.weights), len(self.centre)))

    def predict(self, features: Array) -> Array:
        """The correction at each row of features."""
        here = (features - self.centre) / self.scale
        found = _correlate_layers(here, self.places, self.length) @ self.weights
        return np.asarray(np.clip(found, -_LARGEST_OF_LAYERS, _LARGEST_OF_LAYERS))


def fit_layer_residual(features: Array, residual: Array) -> tuple[LayerResidual, Array]:
    """The process whose predictions of left-out rows are best, and its errors on them."""
    from scipy.linalg import cho_factor, cho_solve

    centre = features.mean(axis=0)
    scale = np.maximum(features.std(axis=0), _NARROWEST)
    places = (features - centre) / scale
    wanted = np.clip(residual, -_LARGEST_OF_LAYERS, _LARGEST_OF_LAYERS)
    tried = []
    for length, noise in product(_LENGTHS, _NOISES):
        matrix = _correlate_layers(places, places, length) + noise * np.eye(len(wanted))
        inverse = np.asarray(cho_solve(cho_factor(matrix), np.eye(len(matrix))))
        weights = inverse @ wanted
        left_out = weights / np.diag(inverse)  # each row predicted from all others, in closed form
        tried.append((float(np.abs(left_out).mean()), length, noise, weights, left_out))
    _, length, noise, weights, left_out = min(tried, key=lambda one: one[0])
    return LayerResidual(centre, scale, places, weights, length, noise), np.asarray(left_out)


def _correlate_layers(one: Array, other: Array, length: float) -> Array:
    scaled = np.sqrt(3 * np.maximum(square_distances(one, other), 0))
    return _correlate(scaled / (length * np.sqrt(one.shape[1])))

"""scipy's solvers: imported when something is fitted, because a prediction needs none and has to be quick."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

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

"""Student's law without scipy: the base of the package stays light."""

from __future__ import annotations

import math

_TINY = 1e-300
_ROUNDS = 300


def chance_beyond(ratio: float, freedom: float) -> float:
    """Two-sided chance of a ratio to its error at least this large; 0 freedom tells nothing."""
    if freedom <= 0:
        return 1.0
    if math.isinf(ratio):
        return 0.0
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + ratio * ratio))


def ratio_for(chance: float, freedom: float) -> float:
    """The ratio that is exceeded, on either side, with this chance: 12.7 of 0.05 and 1, 1.96 of many."""
    low, high = 0.0, 1.0
    while chance_beyond(high, freedom) > chance and high < 1e12:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if chance_beyond(middle, freedom) > chance else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _continued_fraction(a, b, x) / a
    return 1.0 - front * _continued_fraction(b, a, 1 - x) / b


def _continued_fraction(a: float, b: float, x: float) -> float:
    upper, lower = 1.0, 1.0 - (a + b) * x / (a + 1)
    lower = 1.0 / (lower or _TINY)
    value = lower
    for m in range(1, _ROUNDS):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            lower = 1.0 / ((1.0 + factor * lower) or _TINY)
            upper = (1.0 + factor / upper) or _TINY
            change = lower * upper
            value *= change
        if abs(change - 1.0) < 1e-12:
            break
    return value

"""Axes: from values to places between 0 and 1, and the values that are written beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from detscope.report.model import Axis

_ROOM = 0.04  # left above the highest value, as a share of the range
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


@dataclass(frozen=True)
class Scale:
    """A range of values on one side of a chart."""

    low: float
    high: float
    log: bool = False

    def place_of(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.log:
            share = math.log10(max(value, self.low) / self.low) / math.log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.5, max(-0.5, share))

    def ends(self) -> list[float | int]:
        """For the page's script: low, high, 1 if logarithmic."""
        return [self.low, self.high, int(self.log)]


def scale_of(axis: Axis, values: Iterable[float], *, from_zero: bool = False, room: float = _ROOM) -> Scale:
    """The range that holds all values, as wide as the axis asks."""
    log = axis.scale == "log"
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = min(known, default=1.0 if log else 0.0), max(known, default=1.0)
    if log:
        low, high = axis.lowest or low, axis.highest or high
        if low >= high:
            low, high = low / 2, high * 2
        margin = (high / low) ** room
        return Scale(low / margin, high * margin, log=True)
    span = high - low
    if axis.lowest is not None:
        low = axis.lowest
    elif from_zero:
        low = min(0.0, low)
    else:
        low -= room * span
    high = axis.highest if axis.highest is not None else high + room * max(span, high - low)
    return Scale(low, high) if high > low else Scale(low, low + (abs(low) or 1.0))


def ticks_of(axis: Axis, scale: Scale, most: int = 6) -> list[tuple[float, str]]:
    """(place, text) of the values to write: those that were asked for, else round ones."""
    wanted = list(axis.ticks) or (_log_ticks(scale) if scale.log else _round_ticks(scale, most))
    return [(scale.place_of(value), tick_text(value)) for value in wanted if scale.low <= value <= scale.high]


def tick_text(value: float) -> str:
    """A round value in few letters."""
    for size, letter in _LARGE:
        if abs(value) >= size:
            return f"{value / size:g} {letter}"
    return f"{value:,.10g}" if abs(value) >= 1e-4 or not value else f"{value:.0e}"


def _round_ticks(scale: Scale, most: int) -> list[float]:
    rough = (scale.high - scale.low) / most
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _log_ticks(scale: Scale) -> list[float]:
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    apart = max(1, (last - first) // 8)
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    return [factor * 10.0**power for power in range(first, last + 1, apart) for factor in factors]

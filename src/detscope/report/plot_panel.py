"""A panel of a drawing with two logarithmic axes: a frame, round numbers beside it, places for values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from detscope.report.canvas import Canvas, width_of
from detscope.report.memory_colours import FAINT, HAIRLINE, INK

_MARGIN = 0.05  # of the axis, beyond the outermost values
_SHORT_AXIS, _LONG_AXIS = 0.8, 2.6  # powers of ten


@dataclass(frozen=True)
class Panel:
    """Where a plot lies and where its values are drawn."""

    left: float
    top: float
    right: float
    bottom: float
    x_place: Callable[[float], float]
    y_place: Callable[[float], float]


@dataclass(frozen=True)
class Frame:
    """The place of a panel and its words."""

    left: float
    top: float
    right: float
    bottom: float
    title: str
    across: str


def log_panel(
    canvas: Canvas,
    frame: Frame,
    x_values: Sequence[float],
    y_values: Sequence[float],
    write: Callable[[float], str],
    *,
    x_ticks: Sequence[float] | None = None,
    write_x: Callable[[float], str] | None = None,
) -> Panel:
    """Draw frame, grid and words; `x_ticks` names values to write (batch sizes), else round numbers."""
    x_place, round_x = log_axis(x_values, frame.left, frame.right)
    y_place, round_y = log_axis(y_values, frame.bottom, frame.top)
    for tick in round_y:
        y = y_place(tick)
        canvas.line([(frame.left, y), (frame.right, y)], HAIRLINE)
        canvas.text(frame.left - 10, y, write(tick), 15, FAINT, "r")
    end = -math.inf
    for tick in x_ticks or round_x:
        x, text = x_place(tick), (write_x or _plain)(tick)
        canvas.line([(x, frame.top), (x, frame.bottom)], HAIRLINE)
        if x - width_of(text, 15) / 2 > end:  # close values leave no room for each other's numbers
            canvas.text(x, frame.bottom + 18, text, 15, FAINT, "m")
            end = x + width_of(text, 15) / 2 + 6
    canvas.text(frame.left, frame.top - 24, frame.title, 20, INK, most=frame.right - frame.left)
    canvas.text((frame.left + frame.right) / 2, frame.bottom + 42, frame.across, 16, INK, "m")
    return Panel(frame.left, frame.top, frame.right, frame.bottom, x_place, y_place)


def log_axis(
    values: Sequence[float], low_place: float, high_place: float
) -> tuple[Callable[[float], float], list[float]]:
    """Where a value lies, and round values within."""
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = max(_MARGIN * (high - low), 0.04)
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        return low_place + (high_place - low_place) * (math.log10(value) - low) / (high - low)

    steps: tuple[float, ...] = (1, 2, 5)
    if high - low < _SHORT_AXIS:
        steps = (1, 1.5, 2, 3, 4, 5, 6, 8)
    elif high - low > _LONG_AXIS:
        steps = (1,)
    powers = range(math.floor(low), math.ceil(high) + 1)
    found = [step * 10.0**power for power in powers for step in steps]
    inside = [tick for tick in found if low <= math.log10(tick) <= high]
    if len(inside) < 2:  # a short stretch between two round numbers
        inside = sorted({float(f"{value:.3g}") for value in (min(values), max(values))})
    return place, inside


def _plain(value: float) -> str:
    return f"{value:,.6g}"

"""The course of a training as a picture: loss and its parts, accuracy, learning rate over the epochs."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from detscope.analyze.curve import Curve, Series, training_curve
from detscope.report.figures import plain
from detscope.report.lettering import drawable, font_of_size, shortened, text_width
from detscope.report.palette import BLACK, PALETTE, WHITE, Colour
from detscope.runs.atomic import storage_error, write_bytes
from detscope.runs.reader import Run

FILE = Path("pictures") / "curve.png"
WIDTH, MARGIN, LEFT, RIGHT, TITLE = 1200, 28, 92, 230, 84
# drawn twice as large and brought down: Pillow's own lines have steps
_SCALE = 2
_GREY: Colour = (110, 110, 110)
_GRID: Colour = (226, 226, 226)
_PALE: Colour = (186, 205, 226)
_MAIN: Colour = (0, 90, 160)
_PART_COLOURS = tuple(PALETTE[index] for index in (0, 2, 6, 5, 1))
_ACCURACY_COLOURS = tuple(PALETTE[index] for index in (4, 5, 2, 6, 0, 1))


@dataclass(frozen=True)
class _Line:
    """A series and how it is drawn."""

    series: Series
    colour: Colour
    width: int = 2
    dots: bool = False
    name: str = ""  # in the legend; empty: not there


@dataclass(frozen=True)
class _Panel:
    """One pair of axes."""

    title: str
    lines: Sequence[_Line]
    height: int
    top_value: float


def write_curve(run: Run) -> Path | None:
    """Write RUN/pictures/curve.png; None where the run has no losses."""
    curve = training_curve(run)
    if curve is None:
        return None
    path = run.folder / FILE
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise storage_error(path, error) from error
    buffer = io.BytesIO()
    draw_curve(curve, title_of(run.info)).save(buffer, "PNG", optimize=True)
    write_bytes(path, buffer.getvalue())
    return path


def title_of(info: Mapping[str, Any]) -> str:
    """Which model on which data."""
    model, data = (info.get(key) or {} for key in ("model", "data"))
    return f"{plain(model.get('name') or 'a model')} on {plain(data.get('name') or 'its data')}"


def draw_curve(curve: Curve, title: str) -> Image.Image:
    """All panels under one title, over the same epochs."""
    panels = list(_panels(curve))
    height = TITLE + sum(panel.height for panel in panels) + 52
    canvas = Image.new("RGB", (WIDTH * _SCALE, height * _SCALE), WHITE)
    sheet = _Sheet(ImageDraw.Draw(canvas), curve)
    sheet.write(MARGIN, 34, title, 28, BLACK)
    sheet.write(MARGIN, 66, _subtitle(curve), 18, _GREY)
    top = TITLE
    for panel in panels:
        sheet.panel(panel, top)
        top += panel.height
    sheet.epochs(top)
    return canvas.resize((WIDTH, height), Image.Resampling.LANCZOS)


def _panels(curve: Curve) -> list[_Panel]:
    parts = [
        _Line(part, _PART_COLOURS[index % len(_PART_COLOURS)], 2, name=part.name.removeprefix("loss_"))
        for index, part in enumerate(curve.parts)
    ]
    whole = [_Line(curve.loss, _PALE, 1), *parts, _Line(curve.smoothed, _MAIN, 4, name="loss")]
    panels = [_Panel("loss", whole, 400, _round_up(_upper(curve)))]
    if curve.accuracy:
        lines = [
            _Line(series, _ACCURACY_COLOURS[index % len(_ACCURACY_COLOURS)], 3, dots=True, name=series.name)
            for index, series in enumerate(curve.accuracy)
        ]
        panels.append(_Panel("accuracy on held-out images", lines, 270, 1.0))
    if curve.learning_rate.values:
        top = _round_up(max(curve.learning_rate.values))
        line = _Line(curve.learning_rate, _GREY, 3, name="learning rate")
        panels.append(_Panel("learning rate", [line], 150, top))
    return panels


def _upper(curve: Curve) -> float:
    """Where the loss's axis ends: the first steps of some trainings are far above all others."""
    values = sorted(value for value in curve.smoothed.values if math.isfinite(value))
    return min(values[-1], 12 * values[len(values) // 2]) if values else 1.0


def _round_up(value: float) -> float:
    """The next number of one or two digits that an axis can end at."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10) if value <= step * unit)


def _subtitle(curve: Curve) -> str:
    steps = len(curve.loss.steps)
    words = [f"{steps:,} steps", f"loss {curve.smoothed.values[0]:.2f} to {curve.smoothed.values[-1]:.2f}"]
    words += [f"{series.name} {series.values[-1]:.3f}" for series in curve.accuracy]
    return ", ".join(words)


class _Sheet:
    """The canvas while it is drawn on; all lengths are those of the finished picture."""

    def __init__(self, pen: ImageDraw.ImageDraw, curve: Curve) -> None:
        self._pen = pen
        self._per_epoch = curve.steps_per_epoch
        self._last = max(curve.loss.steps[-1] + 1 if curve.loss.steps else 1, 1)

    def panel(self, panel: _Panel, top: int) -> None:
        """Axes, lines and legend of one panel."""
        high, low = top + 34, top + panel.height - 14
        self.write(LEFT, top + 16, panel.title, 18, BLACK)
        for tick in range(5):
            y = low - (low - high) * tick / 4
            self._line([(LEFT, y), (WIDTH - RIGHT, y)], _GRID if tick else _GREY, 1)
            self.write(LEFT - 10, y, f"{panel.top_value * tick / 4:.3g}", 16)
        for x, _ in self._epoch_ticks():
            self._line([(x, high), (x, low)], _GRID, 1)
        for line in panel.lines:
            # what is above the axis is left out and not drawn along its edge, where it would look measured
            points = [
                (self._x(step), low - (low - high) * max(0.0, value / panel.top_value))
                for step, value in zip(line.series.steps, line.series.values, strict=True)
                if value <= panel.top_value
            ]
            self._line(points, line.colour, line.width)
            for x, y in points if line.dots else ():
                self._dot(x, y, line.colour)
        self._legend(panel, high)

    def epochs(self, top: int) -> None:
        """The axis that all panels share."""
        for x, number in self._epoch_ticks():
            self.write(round(x), top + 2, str(number), 16, anchor="mm")
        self.write((LEFT + WIDTH - RIGHT) // 2, top + 30, "epoch", 18, BLACK, anchor="mm")

    def write(
        self, x: float, y: float, text: str, size: int, colour: Colour = _GREY, anchor: str | None = None
    ) -> None:
        """Text; figures beside an axis end there, everything else begins."""
        place = anchor or ("rm" if size == 16 else "lm")
        font = font_of_size(size * _SCALE)
        self._pen.text((x * _SCALE, y * _SCALE), drawable(text), fill=colour, font=font, anchor=place)

    def _legend(self, panel: _Panel, high: int) -> None:
        named = [line for line in reversed(panel.lines) if line.name]
        if len(named) < 2 and panel.title == "learning rate":
            return
        font = font_of_size(17 * _SCALE)
        for row, line in enumerate(named):
            x, y = WIDTH - RIGHT + 18, high + 12 + 26 * row
            self._line([(x, y), (x + 24, y)], line.colour, max(3, line.width))
            name = shortened(
                drawable(line.name), font, (RIGHT - 64 - MARGIN) * _SCALE + text_width(" ", font)
            )
            self.write(x + 34, y, name, 17, BLACK)

    def _epoch_ticks(self) -> list[tuple[float, int]]:
        """Ends of epochs, not more than fit; a run shorter than one epoch has its end."""
        epochs = max(1, round(self._last / self._per_epoch))
        every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**6) if epochs / step <= 16)
        numbers = range(every, epochs + 1, every)
        return [(self._x(min(self._last, number * self._per_epoch)), number) for number in numbers]

    def _x(self, step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, step / self._last)

    def _line(self, points: Sequence[tuple[float, float]], colour: Colour, width: int) -> None:
        if len(points) > 1:
            scaled = [(x * _SCALE, y * _SCALE) for x, y in points]
            self._pen.line(scaled, fill=colour, width=width * _SCALE, joint="curve")

    def _dot(self, x: float, y: float, colour: Colour) -> None:
        r = 5
        box = ((x - r) * _SCALE, (y - r) * _SCALE, (x + r) * _SCALE, (y + r) * _SCALE)
        self._pen.ellipse(box, fill=colour, outline=WHITE, width=_SCALE)

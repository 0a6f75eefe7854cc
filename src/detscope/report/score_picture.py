"""How wrong a predictor is, as a picture: predicted against measured, one colour per network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from detscope.analyze.prediction_errors import CLOSE, errors_of, panels_of
from detscope.report.canvas import Canvas, write_canvas
from detscope.report.figures import count, percent, plain
from detscope.report.memory_colours import FAINT, INK, lighter
from detscope.report.palette import PALETTE, Colour
from detscope.report.plot_panel import Frame, Panel, log_axis, log_panel

WIDTH = 1400
_COLUMNS = 2
_TOP, _ROW_HEIGHT, _PLOT = 150, 540, 400
_LEFT, _COLUMN, _LEGEND = 96, 684, 176
_MOST_NAMES = 14
_COLOURS: tuple[Colour, ...] = tuple(PALETTE[index] for index in (4, 5, 2, 0, 6, 1, 3))
_UNITS = {"latency": "ms", "memory": "bytes"}


def draw_scores(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw points (network, target, protocol, method, predicted, measured) into a .png or .svg.

    One panel per target, protocol and method; latencies in ms, memory in bytes.
    """
    return write_canvas(scores_canvas(rows), path)


def scores_canvas(rows: Sequence[Mapping[str, Any]]) -> Canvas:
    """The drawing; says so where there is nothing to draw."""
    panels = panels_of(rows)
    networks = sorted({str(row["network"]) for found in panels.values() for row in found})
    colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(networks)}
    lines = max(1, ceil(len(panels) / _COLUMNS))
    canvas = Canvas(WIDTH, _TOP + _ROW_HEIGHT * lines - 40)
    canvas.text(28, 40, "Predicted against measured", 28, INK)
    words = (
        "every point was hidden from the model that predicted it; band: within 10 %; both axes logarithmic"
    )
    canvas.text(28, 74, words if panels else "nothing to draw: no point has both figures", 17, FAINT)
    for place, ((target, protocol, method), found) in enumerate(panels.items()):
        left = _LEFT + _COLUMN * (place % _COLUMNS)
        top = _TOP + _ROW_HEIGHT * (place // _COLUMNS)
        title = ", ".join(plain(word).replace("-", " ") for word in (target, protocol, method) if word)
        _one(canvas, found, title, _UNITS.get(target, ""), left, top, colours)
    return canvas


def _one(
    canvas: Canvas,
    found: Sequence[Mapping[str, Any]],
    title: str,
    unit: str,
    left: float,
    top: float,
    colours: Mapping[str, Colour],
) -> None:
    values = [float(row[key]) for row in found for key in ("predicted", "measured")]
    across = f"measured, {'MB' if unit == 'bytes' else unit or 'measured'}"
    frame = Frame(left, top, left + _PLOT, top + _PLOT, title, across)
    _band(canvas, frame, values)
    panel = log_panel(canvas, frame, values, values, _writer(unit), write_x=_writer(unit))
    canvas.line([(panel.left, panel.bottom), (panel.right, panel.top)], FAINT, 1, dashed=True)
    _dots(canvas, panel, found, colours)
    _legend(canvas, errors_of(found), panel, colours)


def _band(canvas: Canvas, frame: Frame, values: Sequence[float]) -> None:
    """Where the prediction is within 10 % of the measured figure."""
    x_place, _ = log_axis(values, frame.left, frame.right)
    y_place, _ = log_axis(values, frame.bottom, frame.top)
    low, high = min(values), max(values)
    edge = [(x_place(x), y_place(x * (1 + CLOSE))) for x in (low, high)]
    other = [(x_place(x), y_place(x * (1 - CLOSE))) for x in (high, low)]
    canvas.area([*edge, *other], lighter(PALETTE[2], 0.8))


def _dots(
    canvas: Canvas, panel: Panel, found: Sequence[Mapping[str, Any]], colours: Mapping[str, Colour]
) -> None:
    radius = 4.0 if len(found) < 300 else 2.5
    names = list(colours)
    for row in found:
        x, y = panel.x_place(row["measured"]), panel.y_place(row["predicted"])
        name = str(row["network"])
        canvas.dot(x, y, colours[name], radius, hollow=names.index(name) >= len(_COLOURS))


def _legend(canvas: Canvas, errors: Mapping[str, Any], panel: Panel, colours: Mapping[str, Colour]) -> None:
    canvas.text(panel.left + 12, panel.top + 18, f"mean error {percent(errors['mean'])}", 18, INK)
    within = f"{percent(errors['within_10_percent'])} of {count(errors['rows'])} within 10 %"
    canvas.text(panel.left + 12, panel.top + 42, within, 15, FAINT)
    names = list(colours)
    worst = sorted(errors["by_network"].items(), key=lambda item: -item[1])
    for place, (name, error) in enumerate(worst[:_MOST_NAMES]):
        x, y = panel.right + 18, panel.top + 14 + 25 * place
        canvas.dot(x, y, colours[name], 5, hollow=names.index(name) >= len(_COLOURS))
        canvas.text(x + 12, y, plain(name), 14, INK, most=_LEGEND - 84)
        canvas.text(panel.right + _LEGEND - 2, y, percent(error), 14, INK, "r")
    if len(worst) > _MOST_NAMES:
        y = panel.top + 14 + 25 * _MOST_NAMES
        canvas.text(panel.right + 30, y, f"and {len(worst) - _MOST_NAMES} more", 14, FAINT)


def _writer(unit: str) -> Any:
    scale = 1e-6 if unit == "bytes" else 1.0
    return lambda value: f"{value * scale:,.6g}"

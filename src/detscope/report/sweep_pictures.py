"""A sweep as pictures: latency, memory and images/s against the batch size, speed against parameters."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from detscope.report.lettering import drawable, font_of_size, shortened
from detscope.report.palette import BLACK, PALETTE, WHITE, Colour
from detscope.runs.atomic import storage_error, write_bytes

WIDTH, HEIGHT = 1200, 620
LEFT, RIGHT, TOP, BOTTOM = 110, 330, 84, 72
# drawn twice as large and brought down: Pillow's own lines have steps
_SCALE = 2
_GREY: Colour = (110, 110, 110)
_GRID: Colour = (226, 226, 226)
_COLOURS = tuple(PALETTE[index] for index in (4, 5, 2, 0, 6, 1))
_MOST_LINES = 18


@dataclass(frozen=True)
class Line:
    """A named series of points; dashed where it is the second with its colour."""

    name: str
    points: Sequence[tuple[float, float]]
    intervals: Sequence[tuple[float, float] | None] = ()
    joined: bool = True


@dataclass(frozen=True)
class Chart:
    """A picture with two logarithmic axes."""

    title: str
    across: str
    up: str
    lines: Sequence[Line]
    across_values: Sequence[float] | None = None  # ticks; None: powers


def write_pictures(figures: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write what there are figures for; the paths. Pictures of an earlier state are replaced."""
    paths = []
    for name, chart in charts(figures):
        path = folder / f"{name}.png"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise storage_error(folder, error) from error
        buffer = io.BytesIO()
        draw(chart).save(buffer, "PNG", optimize=True)
        write_bytes(path, buffer.getvalue())
        paths.append(path)
    return paths


def charts(figures: Mapping[str, Any]) -> list[tuple[str, Chart]]:
    """The pictures that these figures give."""
    groups = figures["groups"]
    found: list[tuple[str, Chart]] = []
    for name, title, up, column, scale in (
        ("latency", "Time of a step", "ms, median with 95 % interval", "step_ms", 1.0),
        ("allocated", "Peak allocated memory", "MB", "allocated_bytes", 1e-6),
        ("process", "Peak memory of the process", "MB", "process_bytes", 1e-6),
        ("throughput", "Throughput", "images per second", "images_per_s", 1.0),
    ):
        lines = [line for group in groups if (line := _line(group, column, scale)) is not None]
        if lines:
            batches = sorted({x for line in lines for x, _ in line.points})
            found.append((name, Chart(f"{title} against batch size", "batch size", up, lines, batches)))
    if figures["pareto"]:
        found.append(("pareto", _pareto(figures["pareto"])))
    return found


def _line(group: Mapping[str, Any], column: str, scale: float) -> Line | None:
    points = [point for point in group["points"] if point[column] is not None and point[column] > 0]
    if not points:
        return None
    places = [(float(point["batch_size"]), point[column] * scale) for point in points]
    if column != "step_ms":
        return Line(group["name"], places)
    ends = [(point["step_low_ms"], point["step_high_ms"]) for point in points]
    return Line(group["name"], places, [end if None not in end else None for end in ends])


def _pareto(points: Sequence[Mapping[str, Any]]) -> Chart:
    lines = []
    for stage in sorted({point["stage"] for point in points}):
        own = [point for point in points if point["stage"] == stage]
        front = sorted((point["parameters"] / 1e6, point["images_per_s"]) for point in own if point["front"])
        lines.append(Line(f"{stage}: none is faster and larger", front))
    for point in points:
        place = (point["parameters"] / 1e6, point["images_per_s"])
        lines.append(Line(point["name"], [place], joined=False))
    return Chart("Speed against size", "million parameters", "best images per second", lines)


def draw(chart: Chart) -> Image.Image:
    """The chart as a picture."""
    canvas = Image.new("RGB", (WIDTH * _SCALE, HEIGHT * _SCALE), WHITE)
    pen = ImageDraw.Draw(canvas)
    x_place, x_ticks = _axis([x for line in chart.lines for x, _ in line.points], LEFT, WIDTH - RIGHT)
    y_place, y_ticks = _axis([y for line in chart.lines for _, y in line.points], HEIGHT - BOTTOM, TOP)
    _write(pen, 28, 34, chart.title, 28, BLACK)
    _write(pen, 28, 64, f"{chart.up}; both axes are logarithmic", 17, _GREY)
    for tick in y_ticks:
        y = y_place(tick)
        _stroke(pen, [(LEFT, y), (WIDTH - RIGHT, y)], _GRID, 1)
        _write(pen, LEFT - 12, y, f"{tick:,.6g}", 16, _GREY, "rm")
    for tick in chart.across_values or x_ticks:
        x = x_place(tick)
        _stroke(pen, [(x, TOP), (x, HEIGHT - BOTTOM)], _GRID, 1)
        _write(pen, x, HEIGHT - BOTTOM + 18, f"{tick:,.6g}", 16, _GREY, "mm")
    _write(pen, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 24, chart.across, 18, BLACK, "mm")
    for index, line in enumerate(chart.lines):
        _draw_line(pen, line, _COLOURS[index % len(_COLOURS)], index // len(_COLOURS), x_place, y_place)
    _legend(pen, chart)
    return canvas.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


def _axis(
    values: Sequence[float], low_place: int, high_place: int
) -> tuple[Callable[[float], float], list[float]]:
    """Where a value lies, and round values to write beside the axis."""
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = max(0.04 * (high - low), 0.05)
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        return low_place + (high_place - low_place) * (math.log10(value) - low) / (high - low)

    steps: tuple[float, ...] = (1, 2, 5) if high - low < 3 else (1,)
    if high - low < 0.8:
        steps = (1, 1.5, 2, 3, 4, 5, 6, 8)
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    shown = [tick for tick in ticks if low <= math.log10(tick) <= high]
    if len(shown) < 2:  # a short stretch between two round numbers
        shown = sorted({float(f"{value:.3g}") for value in (min(values), max(values))})
    return place, shown


def _draw_line(
    pen: ImageDraw.ImageDraw,
    line: Line,
    colour: Colour,
    round_number: int,
    x_place: Callable[[float], float],
    y_place: Callable[[float], float],
) -> None:
    places = [(x_place(x), y_place(y)) for x, y in line.points]
    if line.joined:
        _stroke(pen, places, colour, 3 if round_number == 0 else 1)
    for (x, _), ends in zip(places, line.intervals or [None] * len(places), strict=True):
        if ends is not None and min(ends) > 0:
            _stroke(pen, [(x, y_place(ends[0])), (x, y_place(ends[1]))], colour, 2)
    for x, y in places:
        _dot(pen, x, y, colour, round_number)


def _legend(pen: ImageDraw.ImageDraw, chart: Chart) -> None:
    font = font_of_size(15 * _SCALE)
    shown = list(chart.lines)[:_MOST_LINES]
    for index, line in enumerate(shown):
        x, y = WIDTH - RIGHT + 24, TOP + 12 + 25 * index
        colour = _COLOURS[index % len(_COLOURS)]
        if line.joined:
            _stroke(pen, [(x - 10, y), (x + 10, y)], colour, 3)
        _dot(pen, x, y, colour, index // len(_COLOURS))
        name = shortened(drawable(line.name), font, (RIGHT - 70) * _SCALE, keep_end=True)
        _write(pen, x + 20, y, name, 15, BLACK)
    if len(chart.lines) > len(shown):
        _write(pen, WIDTH - RIGHT + 24, HEIGHT - 24, f"and {len(chart.lines) - len(shown)} more", 15, _GREY)


def _write(
    pen: ImageDraw.ImageDraw, x: float, y: float, text: str, size: int, colour: Colour, anchor: str = "lm"
) -> None:
    font = font_of_size(size * _SCALE)
    pen.text((x * _SCALE, y * _SCALE), drawable(text), fill=colour, font=font, anchor=anchor)


def _stroke(
    pen: ImageDraw.ImageDraw, points: Sequence[tuple[float, float]], colour: Colour, width: int
) -> None:
    if len(points) > 1:
        pen.line(
            [(x * _SCALE, y * _SCALE) for x, y in points], fill=colour, width=width * _SCALE, joint="curve"
        )


def _dot(pen: ImageDraw.ImageDraw, x: float, y: float, colour: Colour, round_number: int) -> None:
    """Filled circles, then squares, then rings: colours alone do not tell many lines apart."""
    box = ((x - 5) * _SCALE, (y - 5) * _SCALE, (x + 5) * _SCALE, (y + 5) * _SCALE)
    if round_number % 3 == 1:
        pen.rectangle(box, fill=colour)
    else:
        pen.ellipse(box, fill=colour if round_number % 3 == 0 else WHITE, outline=colour, width=2 * _SCALE)

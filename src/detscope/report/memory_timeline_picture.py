"""Memory of one step as a picture: levels by category stacked over time, phases marked, the peak named."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from detscope.analyze.memory.timeline import Timeline
from detscope.report.figures import number, with_unit
from detscope.report.lettering import drawable, font_of_size, shortened, text_width
from detscope.report.memory_colours import (
    CATEGORY_COLOURS,
    FAINT,
    HAIRLINE,
    INK,
    PAPER,
    category_name,
    lighter,
)

WIDTH, HEIGHT = 1600, 900
LEFT, RIGHT, TOP, BOTTOM = 130, 40, 150, 100
TITLE, TEXT, SMALL = 34, 24, 20
SHARPNESS = 2  # drawn larger and scaled down, so that slanted edges and thin lines are smooth
SHORTEST_NAMED_PHASE = 60  # pixels
HEADROOM = 1.12  # over the peak, for its label


def timeline_picture(timeline: Timeline, title: str) -> npt.NDArray[np.uint8]:
    """The picture of a step, for a slide or a report."""
    canvas = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    ceiling, tick = nice_ceiling(max(1, timeline.peak_bytes))
    canvas.paste(_stack(timeline, ceiling), (LEFT, TOP))
    pen = ImageDraw.Draw(canvas)
    _title(pen, title)
    _legend(pen, timeline)
    _scale(pen, ceiling, tick)
    _time_axis(pen, timeline)
    _phases(pen, timeline)
    _peak(pen, timeline, ceiling)
    return np.asarray(canvas)


def nice_ceiling(peak_bytes: int) -> tuple[int, int]:
    """The top of the picture and the distance of its grid lines: 1, 2 or 5 times a power of ten."""
    wanted = peak_bytes * HEADROOM / 6
    power = 10 ** math.floor(math.log10(max(1.0, wanted)))
    tick = next(round(step * power) for step in (1, 2, 5, 10) if step * power >= wanted)
    return math.ceil(peak_bytes * HEADROOM), tick


def _plot_size() -> tuple[int, int]:
    return WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


def _stack(timeline: Timeline, ceiling: int) -> Image.Image:
    width, height = (side * SHARPNESS for side in _plot_size())
    plot = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(plot)
    _, tick = nice_ceiling(max(1, timeline.peak_bytes))
    for level in range(tick, ceiling + 1, tick):
        y = height - height * level / ceiling
        pen.line((0, y, width, y), fill=HAIRLINE, width=SHARPNESS)
    edges = [min(width, ms / timeline.wall_ms * width) for ms in timeline.ms] + [float(width)]
    ground = np.zeros(len(timeline.ms))
    for category, colour in CATEGORY_COLOURS.items():
        if category not in timeline.bytes:
            continue
        top = ground + np.asarray(timeline.bytes[category], dtype=float)
        outline = (
            list(_steps(edges, top, ceiling, height)) + list(_steps(edges, ground, ceiling, height))[::-1]
        )
        pen.polygon(outline, fill=colour)
        ground = top
    return plot.resize(_plot_size(), Image.Resampling.LANCZOS)


def _steps(
    edges: list[float], levels: npt.NDArray[np.float64], ceiling: int, height: int
) -> Iterator[tuple[float, float]]:
    for index, level in enumerate(levels):
        y = height - height * float(level) / ceiling
        yield edges[index], y
        yield edges[index + 1], y


def _title(pen: ImageDraw.ImageDraw, title: str) -> None:
    text = shortened(drawable(title), font_of_size(TITLE), WIDTH - LEFT - RIGHT)
    pen.text((LEFT, 40), text, fill=INK, font=font_of_size(TITLE), anchor="lm")


def _legend(pen: ImageDraw.ImageDraw, timeline: Timeline) -> None:
    x = LEFT
    font = font_of_size(SMALL)
    for category, colour in CATEGORY_COLOURS.items():
        if category in timeline.bytes:
            name = category_name(category)
            pen.rounded_rectangle((x, 80, x + 20, 100), radius=4, fill=colour)
            pen.text((x + 28, 90), name, fill=INK, font=font, anchor="lm")
            x += 28 + text_width(name, font) + 28


def _scale(pen: ImageDraw.ImageDraw, ceiling: int, tick: int) -> None:
    height = _plot_size()[1]
    for level in range(0, ceiling + 1, tick):
        y = TOP + height - height * level / ceiling
        text = with_unit(level, "bytes") if level else "0"
        pen.text(
            (LEFT - 14, y),
            text.replace(".00 ", " ").replace(".0 ", " "),
            fill=FAINT,
            font=font_of_size(SMALL),
            anchor="rm",
        )
    pen.line((LEFT, TOP + height, WIDTH - RIGHT, TOP + height), fill=INK, width=2)


def _time_axis(pen: ImageDraw.ImageDraw, timeline: Timeline) -> None:
    width, height = _plot_size()
    wanted = timeline.wall_ms / 8
    power = 10 ** math.floor(math.log10(wanted)) if wanted > 0 else 1
    tick = next(step * power for step in (1, 2, 5, 10) if step * power >= wanted)
    for index in range(int(timeline.wall_ms / tick) + 1):
        x = LEFT + width * index * tick / timeline.wall_ms
        pen.line((x, TOP + height, x, TOP + height + 6), fill=INK, width=2)
        digits = max(0, -math.floor(math.log10(tick)))
        label = number(index * tick, digits) + (" ms" if index == 0 else "")
        pen.text((x, TOP + height + 24), label, fill=FAINT, font=font_of_size(SMALL), anchor="mm")


def _phases(pen: ImageDraw.ImageDraw, timeline: Timeline) -> None:
    """A band below the time axis, and a line through the picture where a long phase begins."""
    width, height = _plot_size()
    shades = (lighter(INK, 0.86), lighter(INK, 0.74))
    for index, (name, begin_ms, end_ms) in enumerate(timeline.phases):
        x0, x1 = (LEFT + width * min(1.0, max(0.0, ms / timeline.wall_ms)) for ms in (begin_ms, end_ms))
        top = TOP + height + 48
        pen.rectangle((x0, top, max(x0, x1 - 1), top + 34), fill=shades[index % 2])
        if x1 - x0 < SHORTEST_NAMED_PHASE:
            continue
        for y in range(TOP, TOP + height, 12):
            pen.line((x0, y, x0, y + 5), fill=FAINT, width=1)
        size = SMALL if text_width(drawable(name), font_of_size(SMALL)) <= x1 - x0 - 6 else SMALL - 6
        text = shortened(drawable(name), font_of_size(size), round(x1 - x0) - 4)
        pen.text(((x0 + x1) / 2, top + 17), text, fill=INK, font=font_of_size(size), anchor="mm")


def _peak(pen: ImageDraw.ImageDraw, timeline: Timeline, ceiling: int) -> None:
    width, height = _plot_size()
    x = LEFT + width * min(1.0, timeline.peak_ms / timeline.wall_ms)
    y = TOP + height - height * timeline.peak_bytes / ceiling
    font = font_of_size(TEXT)
    text = f"peak {with_unit(timeline.peak_bytes, 'bytes')}"
    pen.line((LEFT, y, x, y), fill=INK, width=2)
    pen.ellipse((x - 7, y - 7, x + 7, y + 7), fill=PAPER, outline=INK, width=3)
    room = text_width(text, font) + 24
    left = x + 18 if x + room < WIDTH - RIGHT else x - room
    pen.text((left, y - 22), text, fill=INK, font=font, anchor="lm")

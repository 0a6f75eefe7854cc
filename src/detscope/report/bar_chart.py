"""The most expensive modules as a bar chart, drawn with the library that draws the pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from detscope.report.figures import is_number, number
from detscope.report.lettering import drawable, font_of_size, shortened, text_width
from detscope.report.palette import BLACK, PALETTE, WHITE, Colour

# TensorBoard shows images some 350 pixels wide: letters must bear that.
WIDTH, ROW_HEIGHT, MARGIN, FONT_SIZE = 640, 36, 12, 20
NAMES_WIDTH, FIGURES_WIDTH = 270, 112
# blue and orange: far apart in hue and in brightness, also for the colour-blind and in grey print
PARTS: tuple[tuple[str, Colour], ...] = (("forward", PALETTE[4]), ("backward", PALETTE[0]))


def bar_chart(modules: Sequence[Mapping[str, Any]], title: str) -> npt.NDArray[np.uint8]:
    """One bar per module, forward and backward end to end, with its name and its ms."""
    height = 2 * MARGIN + ROW_HEIGHT * (len(modules) + 2)
    canvas = Image.new("RGB", (WIDTH, height), WHITE)
    pen = ImageDraw.Draw(canvas)
    _write(pen, MARGIN, 0, title)
    shown = [part for part in PARTS if any(_ms(module, part[0]) > 0 for module in modules)]
    _legend(pen, shown)
    longest = max((_total(module) for module in modules), default=0.0) or 1.0
    for row, module in enumerate(modules, start=2):
        _bar(pen, row, module, longest)
    return np.asarray(canvas)


def _ms(module: Mapping[str, Any], part: str) -> float:
    value = module.get(f"{part}_ms")
    return max(0.0, float(value)) if value is not None and is_number(value) else 0.0


def _total(module: Mapping[str, Any]) -> float:
    return sum(_ms(module, name) for name, _ in PARTS)


def _middle(row: int) -> int:
    return MARGIN + row * ROW_HEIGHT + ROW_HEIGHT // 2


def _write(pen: ImageDraw.ImageDraw, x: int, row: int, text: str, anchor: str = "lm") -> None:
    pen.text((x, _middle(row)), drawable(text), fill=BLACK, font=font_of_size(FONT_SIZE), anchor=anchor)


def _legend(pen: ImageDraw.ImageDraw, parts: Sequence[tuple[str, Colour]]) -> None:
    x = MARGIN + NAMES_WIDTH
    for name, colour in parts:
        pen.rectangle((x, _middle(1) - 7, x + 14, _middle(1) + 7), fill=colour)
        _write(pen, x + 22, 1, name)
        x += 22 + text_width(name, font_of_size(FONT_SIZE)) + 24


def _bar(pen: ImageDraw.ImageDraw, row: int, module: Mapping[str, Any], longest: float) -> None:
    font = font_of_size(FONT_SIZE)
    # the end of a path tells modules apart, its beginning is shared by many
    path = shortened(drawable(str(module.get("path") or "")), font, NAMES_WIDTH - 12, keep_end=True)
    _write(pen, MARGIN + NAMES_WIDTH - 12, row, path, anchor="rm")
    room = WIDTH - 2 * MARGIN - NAMES_WIDTH - FIGURES_WIDTH
    x = float(MARGIN + NAMES_WIDTH)
    for name, colour in PARTS:
        length = _ms(module, name) / longest * room
        if length >= 0.5:
            pen.rectangle((x, _middle(row) - 12, x + length, _middle(row) + 12), fill=colour)
            x += length
    _write(pen, round(x) + 8, row, f"{number(_total(module))} ms")

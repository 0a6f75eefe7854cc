"""Histograms of a data set as one picture of four panels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from detscope.report.figures import count, mapping
from detscope.report.lettering import drawable, font_of_size, shortened
from detscope.report.palette import BLACK, PALETTE, WHITE

PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 620, 460, 24
TITLE_SIZE, TEXT_SIZE = 22, 16
NAMES_WIDTH, COUNTS_WIDTH = 130, 70
MOST_BARS = 14
_GREY = (110, 110, 110)
_PANELS = (
    ("image_size", "Image sizes"),
    ("boxes_per_image", "Boxes per image"),
    ("box_size", "Box sizes"),
    ("classes", "Classes"),
)


def draw_histograms(histograms: Mapping[str, Any], title: str) -> npt.NDArray[np.uint8]:
    """Image sizes, boxes per image, box sizes and classes, two by two under a title."""
    top = 2 * MARGIN + TITLE_SIZE
    canvas = Image.new("RGB", (2 * PANEL_WIDTH, top + 2 * PANEL_HEIGHT), WHITE)
    pen = ImageDraw.Draw(canvas)
    shown = shortened(drawable(title), font_of_size(TITLE_SIZE), 2 * PANEL_WIDTH - 2 * MARGIN)
    pen.text((MARGIN, MARGIN), shown, fill=BLACK, font=font_of_size(TITLE_SIZE))
    for place, (key, name) in enumerate(_PANELS):
        corner = (place % 2 * PANEL_WIDTH, top + place // 2 * PANEL_HEIGHT)
        _panel(pen, corner, mapping(histograms, key), name, place)
    return np.asarray(canvas)


def _panel(
    pen: ImageDraw.ImageDraw, corner: tuple[int, int], histogram: Mapping[str, Any], name: str, place: int
) -> None:
    left, top = corner[0] + MARGIN, corner[1]
    font = font_of_size(TEXT_SIZE)
    unit = str(histogram.get("unit") or "")
    pen.text((left, top), name, fill=BLACK, font=font_of_size(TITLE_SIZE))
    pen.text((left, top + TITLE_SIZE + 6), drawable(unit), fill=_GREY, font=font)
    bars = list(zip(histogram.get("labels") or (), histogram.get("counts") or (), strict=True))
    if not bars:
        pen.text((left, top + 64), "none", fill=_GREY, font=font)
        return
    shown = bars[:MOST_BARS] if len(bars) <= MOST_BARS else bars[: MOST_BARS - 1]
    if len(bars) > len(shown):
        rest = bars[len(shown) :]
        shown = [*shown, (f"{len(rest)} others", sum(value for _, value in rest))]
    room = PANEL_WIDTH - 2 * MARGIN - NAMES_WIDTH - COUNTS_WIDTH
    most = max(value for _, value in shown) or 1
    row = min(28, (PANEL_HEIGHT - 80) // len(shown))
    for number, (label, value) in enumerate(shown):
        middle = top + 64 + number * row + row // 2
        text = shortened(drawable(str(label)), font, NAMES_WIDTH - 10)
        pen.text((left + NAMES_WIDTH - 10, middle), text, fill=BLACK, font=font, anchor="rm")
        length = room * value / most
        if value:
            box = (
                left + NAMES_WIDTH,
                middle - row // 3,
                left + NAMES_WIDTH + max(1.0, length),
                middle + row // 3,
            )
            pen.rectangle(box, fill=PALETTE[(1, 2, 0, 4)[place % 4]])
        pen.text((left + NAMES_WIDTH + length + 8, middle), count(value), fill=BLACK, font=font, anchor="lm")

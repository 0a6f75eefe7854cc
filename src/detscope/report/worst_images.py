"""Images a detector is worst at: ground truth on the left, predictions on the right, errors in colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from detscope.report.lettering import drawable, font_of_size, shortened, text_width
from detscope.report.palette import BLACK, Colour, text_on
from detscope.report.picture_files import encode, unique_stem
from detscope.runs.atomic import storage_error, write_bytes

Pixels = npt.NDArray[np.uint8]

GOOD: Colour = (0, 158, 115)
BAD: Colour = (213, 94, 0)
ASIDE: Colour = (150, 150, 150)
_PAPER: Colour = (250, 250, 250)
_PANEL_SIDE = (480, 900)  # smaller images are enlarged, larger ones reduced
_GAP = 12
_MASK_OPACITY = 0.4


@dataclass(frozen=True)
class MarkedBox:
    """A box with its name; `score` None: an object of the ground truth."""

    box: tuple[float, float, float, float]  # x, y, width, height, in pixels of the image
    name: str
    colour: Colour
    score: float | None = None
    mask: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Comparison:
    """One image: what is in it and what was predicted, with a line on each."""

    name: str
    pixels: Pixels
    truth: Sequence[MarkedBox]
    predictions: Sequence[MarkedBox]
    truth_line: str
    predictions_line: str


def save_comparisons(folder: Path, comparisons: Sequence[Comparison]) -> list[Path]:
    """Draw and write comparisons, numbered from the worst on."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = {path.stem.casefold() for path in folder.iterdir()}
    except OSError as error:
        raise storage_error(folder, error) from error
    paths = []
    for number, comparison in enumerate(comparisons, start=1):
        data, ending = encode(draw_comparison(comparison))
        path = folder / f"{unique_stem(f'{number:02d}-{Path(comparison.name).name}', taken)}{ending}"
        write_bytes(path, data)
        paths.append(path)
    return paths


def draw_comparison(comparison: Comparison) -> Pixels:
    """Both panels beside each other, each under its line, the file's name at the bottom."""
    height, width = comparison.pixels.shape[:2]
    scale = _scale(width, height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    letters = max(13, min(20, size[0] // 26))
    font, line = font_of_size(letters), round(letters * 1.8)
    sheet = Image.new("RGB", (2 * size[0] + _GAP, size[1] + 2 * line), _PAPER)
    pen = ImageDraw.Draw(sheet)
    panels = (
        (0, comparison.truth, f"ground truth: {comparison.truth_line}"),
        (size[0] + _GAP, comparison.predictions, f"predicted: {comparison.predictions_line}"),
    )
    for left, marked, title in panels:
        sheet.paste(_panel(comparison.pixels, marked, scale, size), (left, line))
        text = shortened(drawable(title), font, size[0] - 8)
        pen.text((left + 4, line // 2), text, fill=BLACK, font=font, anchor="lm")
    name = shortened(drawable(comparison.name), font, sheet.width - 8)
    pen.text((4, sheet.height - line // 2), name, fill=(90, 90, 90), font=font, anchor="lm")
    return np.asarray(sheet)


def _scale(width: int, height: int) -> float:
    smallest, largest = _PANEL_SIDE
    longest = max(width, height)
    return smallest / longest if longest < smallest else min(1.0, largest / longest)


def _panel(pixels: Pixels, marked: Sequence[MarkedBox], scale: float, size: tuple[int, int]) -> Image.Image:
    tinted = pixels.copy()
    for item in marked:
        if item.mask is not None and item.mask.shape == pixels.shape[:2]:
            mixed = tinted[item.mask] * (1 - _MASK_OPACITY) + np.array(item.colour) * _MASK_OPACITY
            tinted[item.mask] = mixed.round().astype(np.uint8)
    panel = Image.fromarray(tinted).resize(size, Image.Resampling.LANCZOS)
    pen = ImageDraw.Draw(panel)
    line = max(2, round(max(size) / 200))
    weakest_first = sorted(marked, key=lambda item: item.score or 0.0)
    places = [_rectangle(item.box, scale, size) for item in weakest_first]
    for item, place in zip(weakest_first, places, strict=True):
        left, top, right, bottom = place
        pen.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=BLACK, width=line + 2)
        pen.rectangle(place, outline=item.colour, width=line)
    letters = max(11, min(18, max(size) // 34))
    taken: list[tuple[float, float, float, float]] = []
    # the best choose their place first
    for item, place in zip(reversed(weakest_first), reversed(places), strict=True):
        _label(pen, item, place, size, letters, taken)
    return panel


def _rectangle(
    box: tuple[float, float, float, float], scale: float, size: tuple[int, int]
) -> tuple[float, float, float, float]:
    x, y, width, height = (side * scale for side in box)
    left, top = min(max(x, 0), size[0] - 2), min(max(y, 0), size[1] - 2)
    right, bottom = min(max(x + width, left + 1), size[0] - 1), min(max(y + height, top + 1), size[1] - 1)
    return left, top, right, bottom


def _label(
    pen: ImageDraw.ImageDraw,
    item: MarkedBox,
    place: tuple[float, float, float, float],
    size: tuple[int, int],
    letters: int,
    taken: list[tuple[float, float, float, float]],
) -> None:
    """Name and score above the box, else below or inside; left out where it would hide another label."""
    font = font_of_size(letters)
    score = "" if item.score is None else f" {item.score:.2f}"
    text = shortened(drawable(item.name), font, size[0] - 8 - text_width(score, font)) + score
    width, height = text_width(text, font) + 6, round(letters * 1.35)
    left = min(max(place[0], 0), size[0] - width)
    for top in (place[1] - height, place[3] + 1, place[1], place[3] - height):
        spot = (left, top, left + width, top + height)
        if top < 0 or spot[3] > size[1] or any(_touch(spot, other) for other in taken):
            continue
        taken.append(spot)
        pen.rectangle(spot, fill=item.colour)
        middle = (spot[1] + spot[3]) / 2
        pen.text((left + 3, middle), text, fill=text_on(item.colour), font=font, anchor="lm")
        return


def _touch(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    return across > 0 and down > 0

"""The peak as a treemap: category, inside it modules, inside them tensors; area is bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from detscope.analyze.memory.timeline import PeakTree
from detscope.report.figures import percent, with_unit
from detscope.report.lettering import drawable, font_of_size, shortened, text_width
from detscope.report.memory_colours import CATEGORY_COLOURS, INK, PAPER, category_name, lighter
from detscope.report.palette import Colour, text_on

Box = tuple[float, float, float, float]  # left, top, right, bottom

WIDTH, HEIGHT, MARGIN, TITLE_HEIGHT = 1600, 900, 24, 76
TITLE, HEADING, MODULE, TENSOR = 34, 22, 17, 15
HEADING_HEIGHT, MODULE_HEIGHT = 32, 24
SHADES = (0.28, 0.44, 0.36, 0.5)  # how much white neighbouring modules get


def treemap_picture(tree: PeakTree, title: str) -> npt.NDArray[np.uint8]:
    """The picture of a peak, for a slide or a report."""
    canvas = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    pen = ImageDraw.Draw(canvas)
    heading = shortened(drawable(title), font_of_size(TITLE), WIDTH - 2 * MARGIN)
    pen.text((MARGIN, MARGIN + 20), heading, fill=INK, font=font_of_size(TITLE), anchor="lm")
    categories: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for category, module, tensor, size in tree.leaves:
        categories[category].append((module, tensor, size))
    sizes = {name: sum(size for _, _, size in leaves) for name, leaves in categories.items()}
    ranked = sorted((name for name in sizes if sizes[name] > 0), key=lambda name: -sizes[name])
    whole: Box = (MARGIN, TITLE_HEIGHT, WIDTH - MARGIN, HEIGHT - MARGIN)
    for name, box in zip(ranked, squarified([sizes[name] for name in ranked], whole), strict=True):
        share = sizes[name] / tree.peak_bytes if tree.peak_bytes else 0.0
        _category(pen, name, categories[name], sizes[name], share, box)
    return np.asarray(canvas)


def squarified(sizes: Sequence[float], box: Box) -> list[Box]:
    """Rectangles of these areas, largest first, as near to squares as rows of them can be.

    After Bruls, Huizing and van Wijk: a row takes the next size as long as its worst rectangle gets better.
    """
    total = float(sum(sizes))
    left, top, right, bottom = box
    if total <= 0:
        return [(left, top, left, top) for _ in sizes]
    scale = max(0.0, right - left) * max(0.0, bottom - top) / total
    areas = [size * scale for size in sizes]
    placed: list[Box] = []
    begin = 0
    while begin < len(areas):
        side = min(right - left, bottom - top)
        end = begin + 1
        while end < len(areas) and _worst(areas[begin : end + 1], side) <= _worst(areas[begin:end], side):
            end += 1
        row = areas[begin:end]
        depth = sum(row) / side if side > 0 else 0.0
        along = right - left > bottom - top  # a wide rest is filled from the left, a tall one from the top
        at = top if along else left
        for area in row:
            length = area / depth if depth > 0 else 0.0
            placed.append(
                (left, at, left + depth, at + length) if along else (at, top, at + length, top + depth)
            )
            at += length
        left, top = (left + depth, top) if along else (left, top + depth)
        begin = end
    return placed


def _worst(areas: Sequence[float], side: float) -> float:
    """The most stretched rectangle of a row along a side; 1 is a square."""
    whole, smallest, largest = sum(areas), min(areas), max(areas)
    if whole <= 0 or smallest <= 0:
        return float("inf")
    return max(side * side * largest / whole**2, whole**2 / (side * side * smallest))


def _category(
    pen: ImageDraw.ImageDraw,
    name: str,
    leaves: Sequence[tuple[str, str, int]],
    size: int,
    share: float,
    box: Box,
) -> None:
    colour = CATEGORY_COLOURS.get(name, CATEGORY_COLOURS["unknown"])
    box = _shrunk(box, 2)
    if not _fill(pen, box, colour):
        return
    short = f"{category_name(name)}  {with_unit(size, 'bytes')}"
    labels = (f"{short}  {percent(share)}", short, category_name(name))
    inner = _below_heading(pen, box, labels, HEADING, HEADING_HEIGHT, colour)
    if inner is None:
        return
    modules: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for module, tensor, tensor_size in leaves:
        modules[module].append((tensor, tensor_size))
    sizes = {module: sum(size for _, size in tensors) for module, tensors in modules.items()}
    ranked = sorted(sizes, key=lambda module: (-sizes[module], module))
    for index, (module, place) in enumerate(
        zip(ranked, squarified([sizes[module] for module in ranked], inner), strict=True)
    ):
        shade = lighter(colour, SHADES[index % len(SHADES)])
        _module(pen, module, modules[module], sizes[module], place, shade)


def _module(
    pen: ImageDraw.ImageDraw,
    name: str,
    tensors: Sequence[tuple[str, int]],
    size: int,
    box: Box,
    colour: Colour,
) -> None:
    box = _shrunk(box, 1)
    if not _fill(pen, box, colour):
        return
    labels = (f"{name}  {with_unit(size, 'bytes')}", name)
    inner = _below_heading(pen, box, labels, MODULE, MODULE_HEIGHT, colour)
    if inner is None or len(tensors) == 0:
        return
    pale = lighter(colour, 0.45)
    ordered = sorted(tensors, key=lambda tensor: -tensor[1])
    for (text, tensor_size), place in zip(
        ordered, squarified([item[1] for item in ordered], inner), strict=True
    ):
        place = _shrunk(place, 3)
        if _fill(pen, place, pale):
            _tensor(pen, text, tensor_size, place, pale)


def _tensor(pen: ImageDraw.ImageDraw, text: str, size: int, box: Box, colour: Colour) -> None:
    font = font_of_size(TENSOR)
    left, top, right, bottom = box
    lines = [text, with_unit(size, "bytes")]
    if bottom - top < 20 * len(lines) + 4:
        lines = lines[:1]
    if bottom - top < 20:
        return
    for index, line in enumerate(lines):
        fitting = shortened(drawable(line), font, round(right - left) - 10)
        if len(fitting) > 2:
            place = (left + 5, top + 12 + 20 * index)
            pen.text(place, fitting, fill=text_on(colour), font=font, anchor="lm")


def _below_heading(
    pen: ImageDraw.ImageDraw, box: Box, labels: Sequence[str], size: int, height: int, colour: Colour
) -> Box | None:
    """Write the longest heading that fits; what is left below it, None where nothing useful is."""
    left, top, right, bottom = box
    font = font_of_size(size)
    room = round(right - left) - 12
    if bottom - top < height or room < 24:
        return None
    texts = [drawable(label) for label in labels]
    # the end of a path tells modules apart, its beginning is shared by many
    cut = shortened(texts[-1], font, room, keep_end=True)
    text = next((text for text in texts if text_width(text, font) <= room), cut)
    if len(text) > 2:
        pen.text((left + 6, top + height / 2), text, fill=text_on(colour), font=font, anchor="lm")
    inner = (left + 2, top + height, right - 2, bottom - 2)
    return inner if inner[2] - inner[0] > 6 and inner[3] - inner[1] > 6 else None


def _shrunk(box: Box, by: float) -> Box:
    left, top, right, bottom = box
    return left + by / 2, top + by / 2, right - by / 2, bottom - by / 2


def _fill(pen: ImageDraw.ImageDraw, box: Box, colour: Colour) -> bool:
    left, top, right, bottom = box
    if right - left < 1.5 or bottom - top < 1.5:
        return False
    pen.rectangle((left, top, right, bottom), fill=colour)
    return True

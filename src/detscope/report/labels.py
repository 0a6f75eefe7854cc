"""Labels of boxes: where each one goes, and how much of its text there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import ImageDraw

from detscope.report.lettering import Font, drawable, font_of_size, shortened, text_width
from detscope.report.palette import colour_of, text_on

Rectangle = tuple[int, int, int, int]  # left, top, right, bottom; all of them inside
Size = tuple[int, int]  # width, height

MOST_COVERED = 0.2  # share of a label that may lie on others


@dataclass(frozen=True)
class LabelledBox:
    """A box that wants a label."""

    box: Rectangle
    name: str
    score: float


def draw_labels(
    pen: ImageDraw.ImageDraw, best_first: Sequence[LabelledBox], picture: Size, size: int
) -> None:
    """Give every box its label; the best choose their place first and are drawn last."""
    font = font_of_size(size)
    padding = max(1, size // 6)
    height = size + 2 * padding
    taken: list[Rectangle] = []
    placed: list[tuple[Rectangle, str, str]] = []
    for item in best_first:
        text = _text(item.name, item.score, font, picture[0] - 2 * padding)
        if not text or height > picture[1]:
            continue
        place = _place(item.box, (text_width(text, font) + 2 * padding, height), picture, taken)
        if sum(_shared(place, other) for other in taken) > MOST_COVERED * _shared(place, place):
            continue  # in a crowd the weakest go without: both labels would be lost
        taken.append(place)
        placed.append((place, text, item.name))
    for place, text, name in reversed(placed):
        colour = colour_of(name)
        pen.rectangle(place, fill=colour)
        middle = (place[1] + place[3]) / 2
        pen.text((place[0] + padding, middle), text, fill=text_on(colour), font=font, anchor="lm")


def _text(name: str, score: float, font: Font, width: int) -> str:
    """Name and score; where they do not fit, less of the name, then the score alone."""
    name, number = drawable(name), f"{score:.2f}"
    room = width - text_width(f" {number}", font)
    fitting = shortened(name, font, room)
    if fitting:
        return f"{fitting} {number}"
    return number if text_width(number, font) <= width else ""


def _place(box: Rectangle, label: Size, picture: Size, taken: Sequence[Rectangle]) -> Rectangle:
    """Above the box, else inside, below or at its right: where it covers least of other labels."""
    left, top, right, bottom = box
    width, height = label
    corners = (
        (left, top - height),
        (left, top),
        (left, bottom + 1),
        (left, bottom - height + 1),
        (right - width + 1, top - height),
        (right - width + 1, bottom + 1),
    )
    places = [_inside(x, y, label, picture) for x, y in corners]
    return min(places, key=lambda place: sum(_shared(place, other) for other in taken))


def _inside(x: int, y: int, label: Size, picture: Size) -> Rectangle:
    width, height = label
    left = max(0, min(x, picture[0] - width))
    top = max(0, min(y, picture[1] - height))
    return left, top, left + width - 1, top + height - 1


def _shared(one: Rectangle, other: Rectangle) -> int:
    across = min(one[2], other[2]) - max(one[0], other[0]) + 1
    down = min(one[3], other[3]) - max(one[1], other[1]) + 1
    return max(0, across) * max(0, down)

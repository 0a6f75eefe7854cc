"""A drawing that becomes a PNG or an SVG: the same shapes, the same places, the same letters."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

from PIL import Image, ImageDraw

from detscope.errors import UsageError
from detscope.report.lettering import drawable, font_of_size, shortened, text_width
from detscope.report.palette import WHITE, Colour
from detscope.runs.atomic import write_bytes

Point = tuple[float, float]
ENDINGS = (".png", ".svg")
# drawn twice as large and brought down: Pillow's own lines have steps
_SCALE = 2
_DASH = (9.0, 6.0)
_ANCHORS = {"l": "start", "m": "middle", "r": "end"}


@dataclass(frozen=True)
class Shape:
    """An area (filled), a line, a dot or a text; only what its kind needs is set."""

    kind: str
    points: Sequence[Point]
    colour: Colour
    width: float = 0.0  # of a line; radius of a dot; size of letters
    text: str = ""
    anchor: str = "l"
    dashed: bool = False
    hollow: bool = False


@dataclass
class Canvas:
    """Shapes in the order in which they are drawn."""

    width: int
    height: int
    shapes: list[Shape] = field(default_factory=list)

    def area(self, points: Sequence[Point], colour: Colour) -> None:
        """A filled polygon."""
        self.shapes.append(Shape("area", list(points), colour))

    def box(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        """A filled rectangle."""
        self.area([(left, top), (right, top), (right, bottom), (left, bottom)], colour)

    def line(
        self, points: Sequence[Point], colour: Colour, width: float = 1.0, *, dashed: bool = False
    ) -> None:
        """A line through points."""
        if len(points) > 1:
            self.shapes.append(Shape("line", list(points), colour, width, dashed=dashed))

    def dot(self, x: float, y: float, colour: Colour, radius: float = 5.0, *, hollow: bool = False) -> None:
        """A circle, filled or a ring."""
        self.shapes.append(Shape("dot", [(x, y)], colour, radius, hollow=hollow))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: int,
        colour: Colour,
        anchor: str = "l",
        most: float | None = None,
    ) -> None:
        """A line of text around its middle height, to the right of x (l), around it (m) or left of it (r).

        `most` is the width in which it has to fit; its beginning is left out where it does not.
        """
        shown = drawable(text)
        if most is not None:
            shown = shortened(shown, font_of_size(size), int(most), keep_end=True)
        self.shapes.append(Shape("text", [(x, y)], colour, size, shown, anchor))

    def png(self) -> bytes:
        """The drawing in pixels."""
        canvas = Image.new("RGB", (self.width * _SCALE, self.height * _SCALE), WHITE)
        pen = ImageDraw.Draw(canvas)
        for shape in self.shapes:
            _PIXELS[shape.kind](pen, shape)
        buffer = io.BytesIO()
        canvas.resize((self.width, self.height), Image.Resampling.LANCZOS).save(buffer, "PNG", optimize=True)
        return buffer.getvalue()

    def svg(self) -> str:
        """The drawing as text; names in it are escaped."""
        body = "\n".join(_element(shape) for shape in self.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" '
            f'font-family="Aileron, Helvetica, Arial, sans-serif">\n'
            f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
        )


def width_of(text: str, size: int) -> int:
    """Pixels that a text takes."""
    return text_width(drawable(text), font_of_size(size))


def check_ending(path: Path) -> None:
    """Refuse a picture that is neither a PNG nor an SVG, before anything is computed."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"--picture {path}: its name says neither .png nor .svg", "--picture predicted.png")


def write_canvas(canvas: Canvas, path: Path) -> Path:
    """Write the drawing as the ending of its name says."""
    check_ending(path)
    is_svg = path.suffix.lower() == ".svg"
    write_bytes(path, canvas.svg().encode() if is_svg else canvas.png())
    return path


def _scaled(points: Sequence[Point]) -> list[Point]:
    return [(x * _SCALE, y * _SCALE) for x, y in points]


def _pixel_area(pen: ImageDraw.ImageDraw, shape: Shape) -> None:
    pen.polygon(_scaled(shape.points), fill=shape.colour)


def _pixel_line(pen: ImageDraw.ImageDraw, shape: Shape) -> None:
    for piece in _dashes(shape.points) if shape.dashed else [shape.points]:
        width = max(1, round(shape.width * _SCALE))
        pen.line(_scaled(piece), fill=shape.colour, width=width, joint="curve")


def _dashes(points: Sequence[Point]) -> list[list[Point]]:
    """Pieces of straight stretches; Pillow knows no dashed lines."""
    found = []
    for (x0, y0), (x1, y1) in pairwise(points):
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        begin = 0.0
        while begin < length:
            end = min(begin + _DASH[0], length)
            found.append(
                [(x0 + (x1 - x0) * part / length, y0 + (y1 - y0) * part / length) for part in (begin, end)]
            )
            begin += sum(_DASH)
    return found


def _pixel_dot(pen: ImageDraw.ImageDraw, shape: Shape) -> None:
    (x, y), radius = shape.points[0], shape.width
    box = ((x - radius) * _SCALE, (y - radius) * _SCALE, (x + radius) * _SCALE, (y + radius) * _SCALE)
    pen.ellipse(box, fill=WHITE if shape.hollow else shape.colour, outline=shape.colour, width=2 * _SCALE)


def _pixel_text(pen: ImageDraw.ImageDraw, shape: Shape) -> None:
    font = font_of_size(round(shape.width) * _SCALE)
    pen.text(_scaled(shape.points)[0], shape.text, fill=shape.colour, font=font, anchor=f"{shape.anchor}m")


_PIXELS = {"area": _pixel_area, "line": _pixel_line, "dot": _pixel_dot, "text": _pixel_text}


def _element(shape: Shape) -> str:
    colour = "#" + "".join(f"{part:02x}" for part in shape.colour)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
    x, y = shape.points[0]
    if shape.kind == "area":
        return f'<polygon points="{points}" fill="{colour}"/>'
    if shape.kind == "line":
        dashes = f' stroke-dasharray="{_DASH[0]:g} {_DASH[1]:g}"' if shape.dashed else ""
        return (
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{shape.width:g}" '
            f'stroke-linejoin="round"{dashes}/>'
        )
    if shape.kind == "dot":
        fill = "#ffffff" if shape.hollow else colour
        return (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{shape.width:g}" fill="{fill}" '
            f'stroke="{colour}" stroke-width="2"/>'
        )
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{shape.width:g}" fill="{colour}" '
        f'text-anchor="{_ANCHORS[shape.anchor]}" dominant-baseline="central">{escape(shape.text)}</text>'
    )

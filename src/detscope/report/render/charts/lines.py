"""Lines, points and areas as SVG: places across are shares of the width, letters keep their size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import escape

from detscope.report.model import Axis, Chart, Series
from detscope.report.render.charts.scales import Scale, scale_of, ticks_of

WIDTH = 1000  # units across; a screen shows about as many pixels
MOST_SHAPES = 300  # more points than this are dots, whatever their symbol
_BELOW = 62  # pixels for the caption and what is written under the axis
_DASHES = {"solid": "", "dot": "2 4", "dash": "7 4", "dashdot": "7 3 2 3"}
_SHAPES = {
    "cross": "M-3.5-3.5L3.5 3.5M-3.5 3.5L3.5-3.5",
    "diamond": "M0-4.5L4.5 0L0 4.5L-4.5 0Z",
    "triangle": "M0-4.5L4.5 3.5L-4.5 3.5Z",
}


@dataclass(frozen=True)
class Plane:
    """Where values lie: units across, pixels down."""

    x: Scale
    y: Scale
    right: Scale
    height: int
    names: Sequence[str] = ()  # of places across, where these are no numbers

    def across(self, value: float | str) -> int:
        """Units from the left."""
        at = self.names.index(value) if isinstance(value, str) else value
        return round(WIDTH * self.x.place_of(at))

    def down(self, value: float, series: Series) -> int:
        """Pixels from the top."""
        scale = self.right if series.on_right else self.y
        return round(self.height * (1 - scale.place_of(value)))


def plane_of(chart: Chart, content: Sequence[Series]) -> Plane:
    """Axes that hold everything a chart shows."""
    names = list(dict.fromkeys(x for series in content for x in series.x if isinstance(x, str)))
    across = [float(x) for series in content for x in series.x if not isinstance(x, str)]
    across += [mark.at for mark in chart.marks] + [float(index) for index in range(len(names))]
    areas = [series for series in content if series.look == "area"]
    dotted = any(series.look != "lines" for series in content) and not areas
    return Plane(
        scale_of(chart.x, across, room=0.02 if dotted else 0.0),
        scale_of(chart.y, [*_heights_of(content, False), *_stack_tops(areas)], from_zero=bool(areas)),
        scale_of(chart.right or Axis(), _heights_of(content, True)),
        max(90, chart.height - _BELOW),
        names,
    )


def _heights_of(content: Sequence[Series], on_right: bool) -> Iterator[float]:
    for series in content:
        if series.on_right != on_right or series.look == "area":
            continue
        for index, value in enumerate(series.y):
            if isinstance(value, int | float):
                yield value + (series.error_up[index] if series.error_up else 0.0)
                yield value - (series.error_down[index] if series.error_down else 0.0)


def _stack_tops(areas: Sequence[Series]) -> list[float]:
    return [sum(column) for column in zip(*(_numbers_of(series) for series in areas), strict=False)]


def _numbers_of(series: Series) -> list[float]:
    return [float(value) if isinstance(value, int | float) else 0.0 for value in series.y]


def draw_lines(chart: Chart, content: Sequence[Series]) -> str:
    """The picture; what its script needs to tell values comes from `lines_data`."""
    plane = plane_of(chart, content)
    left, grid = _draw_height_axis(chart.y, plane.y, plane.height, "left")
    right, other = 14, ""
    if chart.right is not None:
        right, other = _draw_height_axis(chart.right, plane.right, plane.height, "right")
    areas = [series for series in content if series.look == "area"]
    stretched = "".join(_draw_areas(areas, content, plane))
    loose = ""
    for place, series in enumerate(content):
        if series.look != "area":
            path, shapes = _draw_series(series, place, plane)
            stretched, loose = stretched + path, loose + shapes
    size = f'width="100%" height="{plane.height}"'
    picture = (
        f'<svg class="lines" {size} role="img" aria-label="{escape(chart.label)}">{grid}{other}'
        f"{_draw_width_axis(chart, plane)}"
        f'<svg {size} viewBox="0 0 {WIDTH} {plane.height}" preserveAspectRatio="none">{stretched}</svg>'
        f"{loose}{_draw_marks(chart, plane)}</svg>"
    )
    second = f"<span>{escape(chart.right.title)}</span>" if chart.right is not None else ""
    units = f'<p class="axis top"><span>{escape(chart.y.title)}</span>{second}</p>'
    return (
        f'{units}<div class="plot" style="padding:0 {right}px 0 {left}px">{picture}</div>'
        f'<p class="axis">{escape(chart.x.title)}</p>'
    )


def _draw_height_axis(axis: Axis, scale: Scale, height: int, side: str) -> tuple[int, str]:
    ticks = ticks_of(axis, scale, 5 if height < 260 else 7) if not axis.hidden else []
    room = 16 + 7 * max((len(text) for _, text in ticks), default=0)
    at = 'x="-8" text-anchor="end"' if side == "left" else 'x="100%" dx="8"'
    drawn = ""
    for place, text in ticks:
        y = round(height * (1 - place), 1)
        drawn += f'<line x2="100%" y1="{y}" y2="{y}"/>' if side == "left" else ""
        drawn += f'<text {at} y="{y}" dy=".35em">{escape(text)}</text>'
    return room, f'<g class="grid">{drawn}</g>'


def _draw_width_axis(chart: Chart, plane: Plane) -> str:
    if chart.x.hidden:
        return ""
    ticks = ticks_of(chart.x, plane.x, 8)
    if plane.names:
        ticks = [(plane.across(name) / WIDTH, name) for name in plane.names]
    every = math.ceil(len(ticks) / 12)
    drawn = ""
    for number, (place, text) in enumerate(ticks[::every]):
        minor = ' class="minor"' if number % 2 else ""  # these make room on a narrow screen
        at = f'x="{100 * place:.2f}%" y="{plane.height + 18}"'
        drawn += f'<text {at} text-anchor="middle"{minor}>{escape(text)}</text>'
    base = f'<line class="base" x2="100%" y1="{plane.height}" y2="{plane.height}"/>'
    return f'<g class="grid">{base}{drawn}</g>'


def _draw_marks(chart: Chart, plane: Plane) -> str:
    drawn = ""
    for mark in chart.marks:
        at = f"{plane.across(mark.at) / 10:g}%"
        drawn += f'<line x1="{at}" x2="{at}" y2="{plane.height}"/>'
        drawn += f'<text x="{at}" dx="4" y="11">{escape(mark.text)}</text>' if mark.text else ""
    return f'<g class="marks">{drawn}</g>' if drawn else ""


def _draw_areas(areas: Sequence[Series], content: Sequence[Series], plane: Plane) -> Iterator[str]:
    """The highest sum first, each filled down to the ground: what lies below is painted over it."""
    sums = [0.0] * (len(areas[0].y) if areas else 0)
    drawn = []
    for series in areas:
        sums = [below + value for below, value in zip(sums, _numbers_of(series), strict=True)]
        points = [(plane.across(x), plane.down(y, series)) for x, y in zip(series.x, sums, strict=True)]
        first, last = (points[0][0], points[-1][0]) if points else (0, 0)
        outline = _draw_path(points, series.steps)
        colour = series.colour if isinstance(series.colour, str) else series.colour[0]
        closed = f"M{first} {plane.height}L{outline[1:]}V{plane.height}Z"
        drawn.append(f'<path data-s="{content.index(series)}" d="{closed}" fill="{colour}"/>' if last else "")
    yield from reversed(drawn)


def _draw_path(points: Sequence[tuple[int, int]], steps: bool = False) -> str:
    """A path without what no pixel shows: points on the one before, and those between on one line."""
    if not points:
        return ""
    x, y = points[0]
    path = f"M{x} {y}"
    for across, down in points[1:]:
        if (across, down) == (x, y):
            continue
        if steps or down == y or across == x:
            path += (f"h{across - x}" if across != x else "") + (f"v{down - y}" if down != y else "")
        else:
            path += f"l{across - x} {down - y}"
        x, y = across, down
    return path


def _draw_series(series: Series, place: int, plane: Plane) -> tuple[str, str]:
    """What is stretched with the picture, and shapes and words that keep their size."""
    known = [
        (index, plane.across(x), plane.down(float(y), series))
        for index, (x, y) in enumerate(zip(series.x, series.y, strict=True))
        if isinstance(y, int | float) and math.isfinite(y)
    ]
    colour = series.colour if isinstance(series.colour, str) else series.colour[0]
    parts = ""
    if series.look in ("lines", "both"):
        dash = f' stroke-dasharray="{_DASHES[series.dash]}"' if _DASHES[series.dash] else ""
        path = _draw_path([(x, y) for _, x, y in known], series.steps)
        parts = f'<path class="line" stroke-width="{series.width:g}"{dash} d="{path}"/>'
    if series.error_up:
        ends = "".join(
            f"M{x} {plane.down(float(series.y[index] or 0) + series.error_up[index], series)}"
            f"V{plane.down(float(series.y[index] or 0) - series.error_down[index], series)}"
            for index, x, _ in known
        )
        parts += f'<path class="line" stroke-width="1.5" d="{ends}"/>'
    shapes = ""
    if series.look != "lines":
        few = len(known) <= MOST_SHAPES and series.symbol in _SHAPES
        dots, shapes = ("", _draw_shapes(series, known)) if few else (_draw_dots(series, known), "")
        parts += dots
    shapes += _draw_words(series, known)
    tag = f'<g data-s="{place}" stroke="{colour}"'
    words = f'<g data-s="{place}" fill="{colour}" stroke="{colour}">{shapes}</g>' if shapes else ""
    return f"{tag}>{parts}</g>", words


def _draw_dots(series: Series, known: Sequence[tuple[int, int, int]]) -> str:
    """Lines without length and with round ends: circles, however wide the picture is."""
    groups: dict[tuple[str, bool], dict[tuple[int, int], None]] = {}
    for index, x, y in known:
        colour = "" if isinstance(series.colour, str) else series.colour[index]
        hollow = bool(series.hollow and series.hollow[index])
        groups.setdefault((colour, hollow), {})[x, y] = None
    drawn = ""
    for (colour, hollow), places in groups.items():
        path = "".join(f"M{x} {y}h0" for x, y in places)
        own = f' stroke="{colour}"' if colour else ""
        many = " many" if len(places) > MOST_SHAPES else ""
        drawn += f'<path class="dots{many}"{own} d="{path}"/>'
        drawn += f'<path class="dots hollow" d="{path}"/>' if hollow else ""
    return drawn


def _draw_shapes(series: Series, known: Sequence[tuple[int, int, int]]) -> str:
    symbol = _SHAPES[series.symbol]
    places = dict.fromkeys((x, y) for _, x, y in known)
    return "".join(
        f'<svg x="{x / 10:g}%" y="{y}" class="shape"><path d="{symbol}"/></svg>' for x, y in places
    )


def _draw_words(series: Series, known: Sequence[tuple[int, int, int]]) -> str:
    """Names above points; one that would lie on another is left out, pointing still tells it."""
    taken: list[tuple[float, float, float]] = []
    drawn = ""
    for index, x, y in known if series.texts else ():
        half = 4.0 * len(series.texts[index])
        if not half or any(abs(x - other) < half + wide and abs(y - at) < 14 for other, at, wide in taken):
            continue
        taken.append((x, y, half))
        end = "start" if x < half else "end" if x > WIDTH - half else "middle"
        drawn += (
            f'<text class="word" x="{x / 10:g}%" y="{y - 8}" text-anchor="{end}">'
            f"{escape(series.texts[index])}</text>"
        )
    return drawn

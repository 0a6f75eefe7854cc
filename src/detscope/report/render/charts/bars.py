"""Bars, and values with whiskers beside a name: rows of HTML, whose letters keep their size on any screen."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import escape

from detscope.report.colours import is_dark
from detscope.report.figures import number
from detscope.report.model import Chart, Series
from detscope.report.render.charts.scales import Scale, scale_of, ticks_of

Piece = tuple[float, float, str]  # left and right end as shares, HTML inside the track


def is_named(content: Sequence[Series]) -> bool:
    """Whether the values of a chart stand beside names instead of along an axis."""
    return any(series.look == "bars" for series in content) or any(
        isinstance(value, str) for series in content for value in series.y
    )


def draw_bars(chart: Chart, content: Sequence[Series]) -> str:
    """One row per name: bars end to end or beneath each other, points with their whiskers."""
    names = list(dict.fromkeys(str(name) for series in content for name in series.y))
    shown = names if chart.y.falling else names[::-1]
    grouped = chart.bars == "group" or not any(series.look == "bars" for series in content)
    scale = scale_of(
        chart.x, _ends_of(content, grouped), from_zero=True, room=0.0 if chart.y.hidden else 0.04
    )
    rows = [_draw_row(name, content, scale, grouped) for name in shown]
    ticks = "".join(
        f'<span style="left:{100 * place:.2f}%">{escape(text)}</span>'
        for place, text in ticks_of(chart.x, scale)
    )
    marks = "".join(
        f'<u style="left:{100 * scale.place_of(mark.at):.2f}%"><span>{escape(mark.text)}</span></u>'
        for mark in chart.marks
    )
    alone = " alone" if chart.y.hidden else ""
    title = f'<p class="axis">{escape(chart.x.title)}</p>' if chart.x.title else ""
    axis = f'<span></span><div class="ticks">{ticks}{marks}</div>' if not chart.x.hidden else ""
    return f'<div class="bars-chart{alone}">{"".join(rows)}{axis}</div>{title}'


def _ends_of(content: Sequence[Series], grouped: bool) -> list[float]:
    """Every value that must fit on the axis."""
    ends: list[float] = []
    above: dict[str, float] = {}
    below: dict[str, float] = {}
    for series in content:
        for index, (value, name) in enumerate(zip(series.x, series.y, strict=True)):
            amount = float(value)
            ends.append(amount + (series.error_up[index] if series.error_up else 0.0))
            ends.append(amount - (series.error_down[index] if series.error_down else 0.0))
            sums = above if amount >= 0 else below
            sums[str(name)] = sums.get(str(name), 0.0) + amount
    return ends if grouped else [*ends, *above.values(), *below.values()]


def _draw_row(name: str, content: Sequence[Series], scale: Scale, grouped: bool) -> str:
    tracks: list[str] = []
    sums = {True: 0.0, False: 0.0}
    pieces = ""
    alone = len(content) == 1
    for place, series in enumerate(content):
        for index, own in enumerate(series.y):
            if str(own) != name:
                continue
            value = float(series.x[index])
            begin = 0.0 if grouped else sums[value >= 0]
            sums[value >= 0] += value
            if series.look == "bars":
                pieces += _draw_bar(series, place, index, begin, scale, alone)
            if series.look != "bars" or series.error_up:
                pieces += _draw_point(series, place, index, scale)
        if grouped:
            tracks.append(pieces)
            pieces = ""
    if not grouped:
        tracks.append(pieces)
    zero = "" if scale.low >= 0 else f'<s style="left:{100 * scale.place_of(0.0):.2f}%"></s>'
    thin = " thin" if len(tracks) > 1 else ""
    lines = "".join(f'<div class="track{thin}">{zero}{track}</div>' for track in tracks)
    return f'<span class="name">{escape(name)}</span><div class="tracks">{lines}</div>'


def _draw_bar(series: Series, place: int, index: int, begin: float, scale: Scale, alone: bool) -> str:
    value = float(series.x[index])
    left, right = sorted((scale.place_of(begin), scale.place_of(begin + value)))
    if right - left < 0.0005 and not alone:
        return ""
    colour = series.colour if isinstance(series.colour, str) else series.colour[index]
    text = series.texts[index] if series.texts else ""
    style = f"left:{100 * left:.2f}%;width:{100 * (right - left):.2f}%;background:{colour}"
    told = f' title="{escape(_tell_value(series, index))}"' if not series.silent else ""
    light = ' class="on-dark"' if is_dark(colour) else ""
    # beside others a text must stay inside its own bar; alone it may stand behind it
    inside = escape(text) if not alone or right - left > 0.5 else ""
    bar = f'<i data-s="{place}"{light} style="{style}"{told}>{inside}</i>'
    return f'{bar}<em style="left:{100 * right:.2f}%">{escape(text)}</em>' if text and not inside else bar


def _draw_point(series: Series, place: int, index: int, scale: Scale) -> str:
    """A dot, and a whisker from the lower to the upper end of its interval."""
    value = float(series.x[index])
    colour = series.colour if isinstance(series.colour, str) else series.colour[index]
    drawn = ""
    if series.error_up:
        left, right = (
            100 * scale.place_of(end)
            for end in (value - series.error_down[index], value + series.error_up[index])
        )
        drawn = f'<b data-s="{place}" style="left:{left:.2f}%;width:{right - left:.2f}%;color:{colour}"></b>'
    if series.look == "bars":
        return drawn
    hollow = " hollow" if series.hollow and series.hollow[index] else ""
    told = f' title="{escape(_tell_value(series, index))}"' if not series.silent else ""
    at = f"left:{100 * scale.place_of(value):.2f}%;color:{colour}"
    return f'{drawn}<q data-s="{place}" class="dot{hollow}" style="{at}"{told}></q>'


def _tell_value(series: Series, index: int) -> str:
    if series.details:
        return series.details[index]
    name = f"{series.y[index]}, {series.name}" if series.name else str(series.y[index])
    return f"{name}: {number(float(series.x[index]), 3)}"

"""A chart as HTML, and the values that the page's script tells when one points at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

from detscope.report.model import Chart, Series, Tree
from detscope.report.render.charts.bars import draw_bars, is_named
from detscope.report.render.charts.lines import draw_lines, plane_of
from detscope.report.render.charts.trees import draw_tree, figure_texts

Json = str | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]


@dataclass(frozen=True)
class DrawnChart:
    """A chart's HTML, and its values for the script: nothing where the HTML says them all."""

    html: Markup
    data: Json


def draw_chart(chart: Chart) -> DrawnChart:
    """The chart with all its choices: those of series side by side, those of trees drawn by the script."""
    choices = list(chart.choices) or [("", chart.content)]
    if isinstance(chart.content, Tree):
        trees = [(name, content) for name, content in choices if isinstance(content, Tree)]
        # the script draws the other trees: without it there is nothing to choose
        chooser = _draw_chooser(chart.id, [name for name, _ in trees], "needs-script")
        html = draw_tree(chart.content, chart.label, chart.height)
        return DrawnChart(Markup(chooser + html), _tree_data(trees))
    panels, data = "", []
    for name, content in choices:
        if not isinstance(content, Tree):
            # what one chooses is mostly what lies along the axis
            own = chart if chart.x.title else replace(chart, x=replace(chart.x, title=name))
            panels += f'<div class="panel">{_draw_content(own, content)}</div>'
            data.append({"name": name, **_series_data(own, content)})
    chooser = _draw_chooser(chart.id, [name for name, _ in choices], "")
    return DrawnChart(Markup(chooser + panels), data if not is_named(chart.content) else None)


def _draw_content(chart: Chart, content: Sequence[Series]) -> str:
    picture = draw_bars(chart, content) if is_named(content) else draw_lines(chart, content)
    if chart.legend == "none" or len(content) < 2:
        return picture
    items = "".join(
        f'<li data-s="{place}"><i style="background:{_colour_of(series)}"></i>{escape(series.name)}</li>'
        for place, series in enumerate(content)
        if series.name
    )
    return f'<ul class="legend">{items}</ul>{picture}'


def _colour_of(series: Series) -> str:
    return series.colour if isinstance(series.colour, str) else next(iter(series.colour), "")


def _draw_chooser(name: str, choices: Sequence[str], css: str) -> str:
    """Radio buttons before the panels: style sheets alone switch between these."""
    if len(choices) < 2:
        return ""
    buttons = "".join(
        f'<input type="radio" name="{escape(name)}-choice" id="{escape(name)}-{place}" value="{place}"'
        f'{" checked" if not place else ""}><label for="{escape(name)}-{place}">{escape(choice)}</label>'
        for place, choice in enumerate(choices)
    )
    return f'<fieldset class="choice {css}"><legend>Show</legend>{buttons}</fieldset>'


def _series_data(chart: Chart, content: Sequence[Series]) -> dict[str, Json]:
    plane = plane_of(chart, content)
    lines: list[Json] = []
    for place, series in enumerate(content):
        if series.silent:
            continue
        told: dict[str, Json] = {"s": place, "name": series.name, "y": [_short(y) for y in series.y]}
        # areas share their moments
        same = next(
            (
                index
                for index, other in enumerate(content[:place])
                if other.x == series.x and not other.silent
            ),
            None,
        )
        told |= {"x": [_short(x) for x in series.x]} if same is None else {"as": same}
        told |= {"texts": list(series.details)} if series.details else {}
        told |= {"right": True} if series.on_right else {}
        told |= {"near": True} if series.look in ("points", "both") else {}
        lines.append(told)
    right = chart.right.title if chart.right is not None else ""
    return {
        "series": lines,
        "axes": {"x": plane.x.ends(), "y": plane.y.ends(), "right": plane.right.ends()},
        "titles": [chart.x.title, chart.y.title, right],
    }


def _short(value: float | str | None) -> Json:
    """Six digits tell a value apart from its neighbours on any screen."""
    if not isinstance(value, int | float):
        return value
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() else short


def _tree_data(trees: Sequence[tuple[str, Tree]]) -> Json:
    """Names once, figures per choice, letter by letter those of the picture; a page has many of them.

    So a name that its parent's name begins is left out (0), and so is an own figure that equals the total.
    """
    first = trees[0][1]
    places = {name: index for index, name in enumerate(first.ids)}
    colours = list(dict.fromkeys(colour for _, tree in trees for colour in tree.colours))
    data: list[Json] = []
    for name, tree in trees:
        told: dict[str, Json] = {"name": name, "unit": tree.unit, "whole": tree.whole}
        texts = figure_texts(tree)
        told["total"] = "|".join(total for total, _, _ in texts)
        told["own"] = "|".join("" if own == total else own for total, own, _ in texts)
        if tree.details:
            told["details"] = list(tree.details)
        else:
            told["share"] = "|".join(share for _, _, share in texts)
        if tree is first or list(tree.colours) != list(first.colours):
            told["shade"] = [colours.index(colour) for colour in tree.colours]
        data.append(told)
    names = zip(first.ids, first.parents, first.labels, strict=True)
    return {
        "shape": first.shape,
        "ids": [0 if name == f"{parent}.{label}" else name for name, parent, label in names],
        "labels": list(first.labels),
        "parents": [places.get(parent, -1) for parent in first.parents],
        "colours": colours,
        "trees": data,
    }

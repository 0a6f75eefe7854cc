"""Charts for the page: a description becomes plotly's traces and layout; its Python part is not needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from detscope.report.model import Axis, Chart, Series, Tree

Json = str | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]
Trace = dict[str, Json]

_SYMBOLS = {"circle": "circle", "cross": "x", "diamond": "diamond", "triangle": "triangle-up"}
_MODES = {"lines": "lines", "points": "markers", "both": "lines+markers", "area": "lines"}
_GREY = "#8A97A6"


def chart_json(chart: Chart) -> Trace:
    """What the page's script draws."""
    return {
        "traces": _traces_of(chart.content),
        "layout": _layout_of(chart),
        "choices": [{"name": name, "traces": _traces_of(content)} for name, content in chart.choices],
    }


def _traces_of(content: Sequence[Series] | Tree) -> list[Trace]:
    return [_tree_trace(content)] if isinstance(content, Tree) else [_series_trace(one) for one in content]


def _series_trace(series: Series) -> Trace:
    colour = series.colour if isinstance(series.colour, str) else list(series.colour)
    trace: Trace = {"name": _inert(series.name), "x": _inert_all(series.x), "y": _inert_all(series.y)}
    if series.look == "bars":
        edge: Trace = {"width": 1, "color": "rgba(255,255,255,.6)"}
        trace |= {"type": "bar", "orientation": "h", "marker": {"color": colour, "line": edge}}
        if series.texts:
            inside: Trace = {"textposition": "inside", "insidetextanchor": "middle"}
            trace |= {"text": _inert_all(series.texts), **inside}
    else:
        line: Trace = {"color": colour, "width": series.width, "dash": series.dash}
        marker: Trace = {"color": colour, "size": 8, "symbol": _symbols_of(series)}
        trace |= {"type": "scatter", "mode": _MODES[series.look], "line": line, "marker": marker}
        if series.texts:
            words: Trace = {"mode": f"{_MODES[series.look]}+text", "textposition": "top center"}
            trace |= {"text": _inert_all(series.texts), **words}
        if series.steps:
            line["shape"] = "hv"
        if series.look == "area":
            trace |= {"stackgroup": "all", "fillcolor": colour}
    if series.on_right:
        trace["yaxis"] = "y2"
    if series.error_up:
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": list(series.error_up),
            "arrayminus": list(series.error_down),
            "thickness": 1.5,
            "color": colour,
        }
    if series.silent:
        trace["hoverinfo"] = "skip"
    elif series.details:
        trace |= {"customdata": _inert_all(series.details), "hovertemplate": "%{customdata}<extra></extra>"}
    return trace


def _symbols_of(series: Series) -> Json:
    symbol = _SYMBOLS[series.symbol]
    return [f"{symbol}-open" if open_ else symbol for open_ in series.hollow] if series.hollow else symbol


def _tree_trace(tree: Tree) -> Trace:
    trace: Trace = {
        "type": tree.shape,
        "ids": _inert_all(tree.ids),
        "labels": _inert_all(tree.labels),
        "parents": _inert_all(tree.parents),
        "values": list(tree.values),
        "branchvalues": "remainder",
        "marker": {"colors": list(tree.colours), "line": {"width": 1, "color": "#ffffff"}},
        "hovertemplate": f"%{{id}}<br>%{{value:.4s}} {tree.unit}<br>"
        f"%{{percentRoot}} of {tree.whole}<extra></extra>",
    }
    if tree.shape == "icicle":
        trace |= {"tiling": {"orientation": "v"}, "leaf": {"opacity": 1}, "maxdepth": 6}
    return trace


def _layout_of(chart: Chart) -> Trace:
    if isinstance(chart.content, Tree):
        return {}
    layout: Trace = {"xaxis": _axis_of(chart.x), "yaxis": _axis_of(chart.y), "barmode": chart.bars}
    if chart.right is not None:
        layout["yaxis2"] = {**_axis_of(chart.right), "overlaying": "y", "side": "right"}
    if chart.legend == "none":
        layout["showlegend"] = False
    elif chart.legend == "bottom":
        layout |= {"showlegend": True, "legend": {"orientation": "h", "yanchor": "top", "y": -0.2}}
    if chart.marks:
        line: Trace = {"width": 1, "dash": "dot", "color": _GREY}
        upright: Trace = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": line}
        above: Trace = {"y": 1, "yref": "paper", "showarrow": False, "xanchor": "left", "yanchor": "bottom"}
        layout["shapes"] = [{**upright, "x0": mark.at, "x1": mark.at} for mark in chart.marks]
        layout["annotations"] = [
            {**above, "x": mark.at, "text": _inert(mark.text)} for mark in chart.marks if mark.text
        ]
    return layout


def _axis_of(axis: Axis) -> Trace:
    found: Trace = {"title": {"text": axis.title}}
    if axis.hidden:
        found["visible"] = False
    if axis.scale == "log":
        found["type"] = "log"
    if axis.falling:
        found["autorange"] = "reversed"
    if axis.highest is not None:
        found["range"] = [axis.lowest or 0, axis.highest]
    elif axis.lowest == 0:
        found["rangemode"] = "tozero"
    if axis.ticks:
        texts = [f"{tick:,g}" for tick in axis.ticks]
        found |= {"tickmode": "array", "tickvals": list(axis.ticks), "ticktext": texts}
    return found


def _inert(text: str) -> str:
    """A name inside a chart, where plotly reads tags and templates."""
    for char, instead in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("%{", "% {")):
        text = text.replace(char, instead)
    return text


def _inert_all(values: Sequence[float | str | None]) -> list[Json]:
    return [_inert(value) if isinstance(value, str) else value for value in values]

"""Charts as PNG pictures, drawn by matplotlib (the extra `pictures`) from the page's own description."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detscope.errors import UsageError
from detscope.extras import has_package, require_package
from detscope.report.figures import plain
from detscope.report.model import Absent, Axis, Chart, Section, Series, Tree
from detscope.runs.atomic import storage_error, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_INCHES, DOTS_PER_INCH = 12.8, 125
_MARKERS = {"circle": "o", "cross": "x", "diamond": "D", "triangle": "^"}
_DASHES = {"solid": "-", "dot": ":", "dash": "--", "dashdot": "-."}
Box = tuple[float, float, float, float]  # left, bottom, width, height


def has_matplotlib() -> bool:
    """Whether pictures can be drawn here."""
    return has_package("matplotlib")


def chart_png(chart: Chart) -> bytes:
    """The picture of one chart; of several contents the first."""
    return draw_charts([chart])


def draw_charts(charts: Sequence[Chart], *, title: str = "", note: str = "", form: str = "png") -> bytes:
    """Charts in one picture, two beside each other, as PNG or SVG; without any, the words alone."""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(2, len(charts)) or 1
    lines = [charts[start : start + columns] for start in range(0, len(charts), columns)]
    heights = [max(3.2, *(chart.height / 75 for chart in line)) for line in lines] or [1.0]
    extra = 0.8 if title else 0.0
    figure = Figure((WIDTH_INCHES, sum(heights) + extra), dpi=DOTS_PER_INCH, layout="constrained")
    if title:
        figure.suptitle(f"{_wrap(title, 110)}\n{_wrap(note, 110)}", x=0.01, ha="left", fontsize=13)
    target = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none"}):
        warnings.simplefilter("ignore")  # a letter that no font has is drawn as a box
        panels = figure.subfigures(len(heights), columns, squeeze=False, height_ratios=heights).flat
        for chart, panel in zip(charts, panels, strict=False):
            axes = panel.add_subplot()
            axes.set_title(
                _wrap(chart.label, 110 // columns), loc="left", fontsize=14 if columns == 1 else 12
            )
            if isinstance(chart.content, Tree):
                _draw_tree(axes, chart.content)
            else:
                _draw_series(axes, chart, chart.content)
        figure.savefig(target, format=form, metadata={"Date": None} if form == "svg" else None)
    return target.getvalue()


def check_picture_name(path: Path) -> None:
    """Refuse a picture that is neither a PNG nor an SVG or cannot be drawn, before anything is computed."""
    require_package("matplotlib")
    if path.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"--picture {path}: its name says neither .png nor .svg", "--picture predicted.png")


def write_picture(path: Path, charts: Sequence[Chart], *, title: str = "", note: str = "") -> Path:
    """Write charts as one picture, as the ending of its name says."""
    check_picture_name(path)
    write_bytes(path, draw_charts(charts, title=title, note=note, form=path.suffix.lower()[1:]))
    return path


def write_chart_files(sections: Sequence[Section | Absent], folder: Path) -> list[Path]:
    """A PNG of every chart that has the name of a file; pictures of an earlier state are replaced."""
    blocks = [block for section in sections if isinstance(section, Section) for block in section.blocks]
    charts = [block for block in blocks if isinstance(block, Chart) and block.file]
    if charts:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise storage_error(folder, error) from error
    paths = [folder / f"{chart.file}.png" for chart in charts]
    for chart, path in zip(charts, paths, strict=True):
        write_bytes(path, chart_png(chart))
    return paths


def _draw_series(axes: Axes, chart: Chart, content: Sequence[Series]) -> None:
    other = axes.twinx() if chart.right is not None else axes
    bars = [series for series in content if series.look == "bars"]
    areas = [series for series in content if series.look == "area"]
    if areas:
        colours = [series.colour if isinstance(series.colour, str) else series.colour[0] for series in areas]
        heights = [[float(value or 0) for value in series.y] for series in areas]
        names = [_literal(series.name) for series in areas]
        x = [float(value) for value in areas[0].x]
        axes.stackplot(x, heights, labels=names, colors=colours, step="post" if areas[0].steps else None)
    _draw_bars(axes, bars, chart.bars)
    for series in content:
        if series.look not in ("bars", "area"):
            _draw_line(other if series.on_right else axes, series)
    for mark in chart.marks:
        axes.axvline(mark.at, color="#8A97A6", linestyle=":", linewidth=1)
        place, above = (mark.at, 1), ("data", "axes fraction")
        axes.annotate(_literal(mark.text), place, (4, -4), above, "offset points", va="top", fontsize=9)
    _set_axis(axes, chart.x, "x")
    _set_axis(axes, chart.y, "y")
    if chart.right is not None:
        _set_axis(other, chart.right, "y")
    for side in ("top", "right"):
        axes.spines[side].set_visible(chart.right is not None and side == "right")
    if chart.legend != "none" and len(content) > 1:
        handles, labels = axes.get_legend_handles_labels()
        if other is not axes:
            more_handles, more_labels = other.get_legend_handles_labels()
            handles, labels = handles + more_handles, labels + more_labels
        columns = 5 if axes.figure is axes.get_figure(root=True) else 3
        axes.figure.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False)


def _draw_line(axes: Axes, series: Series) -> None:
    colour = series.colour if isinstance(series.colour, str) else series.colour[0]
    marker = "" if series.look == "lines" else _MARKERS[series.symbol]
    line = "" if series.look == "points" else _DASHES[series.dash]
    x, y = list(series.x), [float("nan") if value is None else value for value in series.y]
    for text, across, up in zip(series.texts, x, y, strict=False):
        axes.annotate(
            _literal(text), (across, up), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=8
        )
    if not isinstance(series.colour, str):  # one per point
        hollow_ones = series.hollow or [False] * len(x)
        faces = ["white" if open_ else own for own, open_ in zip(series.colour, hollow_ones, strict=True)]
        label, edges = _literal(series.name), list(series.colour)
        axes.scatter(x, y, 42, faces, marker=marker, edgecolors=edges, label=label, zorder=3)
        return
    style = "steps-post" if series.steps else "default"
    axes.plot(
        x, y, color=colour, marker=marker, linestyle=line, label=_literal(series.name), drawstyle=style,
        linewidth=series.width,
    )  # fmt: skip
    hollow = [index for index, open_ in enumerate(series.hollow) if open_]
    if hollow:
        axes.plot(
            [x[index] for index in hollow], [y[index] for index in hollow], "o", color=colour, mfc="white"
        )
    if series.error_up:
        ends = [list(series.error_down), list(series.error_up)]
        axes.errorbar(x, y, ends, fmt="none", ecolor=colour)


def _draw_bars(axes: Axes, bars: Sequence[Series], together: str) -> None:
    names = list(dict.fromkeys(str(name) for series in bars for name in series.y))
    left = dict.fromkeys(names, 0.0)
    thick = 0.8 if together == "stack" else 0.8 / max(1, len(bars))
    for number, series in enumerate(bars):
        places = [names.index(str(name)) for name in series.y]
        values = [float(value) for value in series.x]
        if together == "group":
            places_at = [place - 0.4 + thick * (number + 0.5) for place in places]
            begin = [0.0] * len(values)
        else:
            places_at = [float(place) for place in places]
            begin = [left[str(name)] for name in series.y]
        drawn = axes.barh(
            places_at, values, thick, left=begin, color=series.colour, label=_literal(series.name)
        )
        if series.texts:
            texts = [_literal(text) for text in series.texts]
            axes.bar_label(drawn, texts, label_type="center" if len(bars) > 1 else "edge", padding=3)
        for name, value in zip(series.y, values, strict=True):
            left[str(name)] += value
    if names:
        axes.set_yticks(range(len(names)), [_literal(name) for name in names])


def _draw_tree(axes: Axes, tree: Tree) -> None:
    """Boxes in their parent's box, cut along its longer side for a treemap, row by row for an icicle."""
    below: dict[str, list[int]] = {}
    for index, parent in enumerate(tree.parents):
        below.setdefault(parent, []).append(index)
    whole = [float(value or 0) for value in tree.values]
    for index in reversed(range(len(tree.ids))):  # children stand behind their parents
        whole[index] += sum(whole[child] for child in below.get(tree.ids[index], ()))
    depth = 1 + max((_depth_of(tree, index) for index in range(len(tree.ids))), default=0)
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)

    def place(index: int, box: Box, level: int) -> None:
        left, bottom, width, height = box
        own = (left, bottom + height - 1 / depth, width, 1 / depth) if tree.shape == "icicle" else box
        if min(own[2], own[3]) < 0.002:
            return
        axes.add_patch(_rectangle(own, tree.colours[index]))
        if own[2] > 0.012 * len(tree.labels[index]) * 0.7 and own[3] > 0.02:
            axes.text(
                own[0] + 0.004, own[1] + own[3] - 0.008, _literal(tree.labels[index]), va="top", fontsize=8
            )
        inner = (
            (left, bottom, width, height - 1 / depth)
            if tree.shape == "icicle"
            else (left + 0.002, bottom + 0.002, width - 0.004, height - 0.034)
        )
        lay(below.get(tree.ids[index], []), inner, level + 1, whole[index])

    def lay(children: list[int], box: Box, level: int, total: float) -> None:
        left, bottom, width, height = box
        ordered = children if tree.shape == "icicle" else sorted(children, key=lambda one: -whole[one])
        own = total - sum(whole[one] for one in children)
        for position, index in enumerate(ordered):
            share = whole[index] / total if total else 0.0
            if tree.shape == "icicle":
                place(index, (left, bottom, width * share, height), level)
                left += width * share
                continue
            rest = own + sum(whole[one] for one in ordered[position:]) or 1.0
            part = whole[index] / rest
            if width > height:
                place(index, (left, bottom, width * part, height), level)
                left, width = left + width * part, width * (1 - part)
            else:
                place(index, (left, bottom + height * (1 - part), width, height * part), level)
                height *= 1 - part

    roots = below.get("", [])
    lay(roots, (0.0, 0.0, 1.0, 1.0), 0, sum(whole[index] for index in roots))


def _rectangle(box: Box, colour: str):  # type: ignore[no-untyped-def]
    from matplotlib.patches import Rectangle

    return Rectangle(box[:2], box[2], box[3], facecolor=colour, edgecolor="white", linewidth=0.8)


def _depth_of(tree: Tree, index: int) -> int:
    parents = dict(zip(tree.ids, tree.parents, strict=True))
    depth, parent = 0, tree.parents[index]
    while parent:
        depth, parent = depth + 1, parents.get(parent, "")
    return depth


def _set_axis(axes: Axes, axis: Axis, which: str) -> None:
    set_label, set_scale, set_limits, own = (
        (axes.set_xlabel, axes.set_xscale, axes.set_xlim, axes.xaxis)
        if which == "x"
        else (axes.set_ylabel, axes.set_yscale, axes.set_ylim, axes.yaxis)
    )
    set_label(_literal(axis.title))
    if axis.scale == "log":
        from matplotlib.ticker import LogFormatter

        set_scale("log")
        own.set_major_formatter(LogFormatter())
        own.set_minor_formatter(LogFormatter(labelOnlyBase=False))
    if axis.hidden:
        own.set_visible(False)
    if axis.lowest is not None or axis.highest is not None:
        set_limits(axis.lowest, axis.highest)
    if axis.ticks:
        own.set_ticks(list(axis.ticks), [f"{tick:,g}" for tick in axis.ticks])
        own.set_ticks([], minor=True)
    if axis.falling:
        own.set_inverted(True)


def _wrap(text: str, letters: int) -> str:
    return "\n".join(textwrap.wrap(_literal(text), letters))


def _literal(text: str) -> str:
    """Names stay names: matplotlib reads formulas between dollar signs."""
    return plain(text).replace("$", r"\$")

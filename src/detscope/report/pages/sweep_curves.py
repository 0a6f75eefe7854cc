"""Curves of a sweep's page: latency, memory and speed against the batch size, speed against size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from detscope.report.figures import is_number, mapping, number, plain, rows
from detscope.report.model import Absent, Block, Chart, Column, Notes, Section, Table
from detscope.report.colours import PALETTE

_DASHES = ("solid", "dash", "dot", "dashdot")
_MANY = 24  # lines of which a legend still helps

Group = Mapping[str, Any]


def curve_sections(page: Mapping[str, Any]) -> Iterator[Section | Absent]:
    """Latency, memory, throughput and size, or why one is not there."""
    groups = rows(page, "groups")
    unstable = mapping(page, "unstable")
    yield _latency(groups, unstable)
    yield _memory(groups)
    yield _throughput(groups)
    yield _size(rows(page, "pareto"))


def _latency(groups: list[Group], unstable: Mapping[str, Any]) -> Section | Absent:
    shown = [group for group in groups if _points(group, "step_ms")]
    if not shown:
        return Absent("Latency", "no trial measured it: variables = latency")
    traces = [_line(place, group, "step_ms", 1.0, "ms", unstable) for place, group in enumerate(shown)]
    blocks: list[Block] = [_chart("latency", "Time of a step against batch size", traces, "ms, median")]
    marked = sum(len(batches) for batches in unstable.values())
    if marked:
        blocks.append(
            Notes([f"{marked} points are open circles: unsteady, or a limit ended them with a wide interval"])
        )
    blocks.append(
        _table("latency-table", "Median step in ms, by batch size", shown, "step_ms", "ms", unstable)
    )
    fastest = min(shown, key=lambda group: min(point["step_ms"] for point in _points(group, "step_ms")))
    best = min(_points(fastest, "step_ms"), key=lambda point: point["step_ms"])
    title = (
        f"The fastest step takes {number(best['step_ms'])} ms: {plain(fastest['name'])} at"
        f" batch {best['batch_size']}"
    )
    text = (
        "Median with its 95 % interval as a bar. Both axes are logarithmic: a straight line is a power law."
    )
    return Section("latency-section", "Latency", title, text, blocks)


def _memory(groups: list[Group]) -> Section | Absent:
    kinds = [
        ("allocated_bytes", "allocated: highest sum of live tensors"),
        ("process_bytes", "process: resident peak"),
    ]
    choices, tables = [], []
    for key, name in kinds:
        shown = [group for group in groups if _points(group, key)]
        if shown:
            traces = [_line(place, group, key, 1e-6, "MB", {}) for place, group in enumerate(shown)]
            choices.append((name, traces))
            tables.append(_table(f"{key}-table", f"Peak by batch size, {name}", shown, key, "bytes", {}))
    if not choices:
        return Absent("Memory", "no trial measured it: variables = memory")
    chart = _chart("memory", "Peak memory against batch size", choices[0][1], "MB", choices)
    key = kinds[0][0] if any(_points(group, kinds[0][0]) for group in groups) else kinds[1][0]
    group, point = max(
        ((group, point) for group in groups for point in _points(group, key)), key=lambda pair: pair[1][key]
    )
    title = f"The most: {point[key] / 1e6:,.0f} MB, {plain(group['name'])} at batch {point['batch_size']}"
    text = "Allocated and process memory are two figures and never mixed; both axes are logarithmic."
    return Section("memory-section", "Memory", title, text, [chart, *tables])


def _throughput(groups: list[Group]) -> Section | Absent:
    shown = [group for group in groups if _points(group, "images_per_s")]
    if not shown:
        return Absent("Throughput", "no trial measured latency")
    traces = [_line(place, group, "images_per_s", 1.0, "images/s", {}) for place, group in enumerate(shown)]
    columns = [Column("Network", "code"), Column("best images/s", "number"), Column("at batch", "count")]
    columns += [Column("a larger batch stops to pay at", "count"), Column("parameters", "count")]
    keys = ("name", "best_images_per_s", "best_batch", "stops_to_pay_at", "parameters")
    body = [
        [group.get(key) if group.get(key) is not None else _ABSENT[key] for key in keys] for group in shown
    ]
    best = max(shown, key=lambda group: group.get("best_images_per_s") or 0.0)
    title = (
        f"{plain(best['name'])} is fastest: {number(best.get('best_images_per_s'))} images/s at batch"
        f" {best.get('best_batch')}"
    )
    text = "A larger batch pays while it gains 5 % images/s per doubling."
    return Section(
        "throughput-section",
        "Throughput",
        title,
        text,
        [
            _chart("throughput", "Images per second against batch size", traces, "images per second"),
            Table(
                "throughput-table",
                "Where a larger batch stops to pay",
                columns,
                body,
                searchable=len(body) > 12,
            ),
        ],
    )


def _size(points: list[Mapping[str, Any]]) -> Section | Absent:
    if not points:
        return Absent("Speed against size", "needs latency and the number of parameters")
    traces: list[dict[str, Any]] = []
    for place, stage in enumerate(sorted({str(point["stage"]) for point in points})):
        own = [point for point in points if point["stage"] == stage]
        front = sorted((point["parameters"] / 1e6, point["images_per_s"]) for point in own if point["front"])
        colour = PALETTE[place % len(PALETTE)]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{plain(stage)}: none is faster and larger",
                "x": [x for x, _ in front],
                "y": [y for _, y in front],
                "line": {"color": colour, "width": 2},
                "hoverinfo": "skip",
            }
        )
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(stage),
                "x": [point["parameters"] / 1e6 for point in own],
                "y": [point["images_per_s"] for point in own],
                "text": [_text(point["name"]) for point in own],
                "marker": {"color": colour, "size": 9},
                "hovertemplate": "%{text}: %{x:.2f} M parameters, %{y:.1f} images/s<extra></extra>",
            }
        )
    layout = {
        "xaxis": {"type": "log", "title": {"text": "million parameters"}},
        "yaxis": {"type": "log", "title": {"text": "best images per second"}},
        "showlegend": True,
        "legend": _LEGEND,
    }
    columns = [Column("Network", "code"), Column("stage"), Column("parameters", "count")]
    columns += [Column("best images/s", "number"), Column("on the front")]
    body = [
        [
            point["name"],
            point["stage"],
            point["parameters"],
            point["images_per_s"],
            "yes" if point["front"] else "",
        ]
        for point in points
    ]
    on_front = sum(bool(point["front"]) for point in points)
    return Section(
        "size-section",
        "Speed against size",
        f"{on_front} of {len(points)} networks are on the front: to be faster, one must be smaller",
        "Best images/s of each network against its parameters.",
        [
            Chart("size", "Speed against size", traces, layout, 420),
            Table("size-table", "Speed and size", columns, body, searchable=len(body) > 12),
        ],
    )


_LEGEND: dict[str, Any] = {"orientation": "h", "yanchor": "top", "y": -0.2}
_ABSENT = dict.fromkeys(("name", "best_images_per_s", "best_batch", "parameters")) | {
    "stops_to_pay_at": "not among these"
}


def _points(group: Group, key: str) -> list[Mapping[str, Any]]:
    return [point for point in rows(group, "points") if is_number(point.get(key)) and point[key] > 0]


def _line(
    place: int, group: Group, key: str, scale: float, unit: str, unstable: Mapping[str, Any]
) -> dict[str, Any]:
    points = _points(group, key)
    shaky = set(unstable.get(str(group["name"]), ()))
    values = [point[key] * scale for point in points]
    colour = PALETTE[place % len(PALETTE)]
    name = _text(group["name"])
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [point["batch_size"] for point in points],
        "y": [round(value, 6) for value in values],
        "line": {"color": colour, "dash": _DASHES[place // len(PALETTE) % len(_DASHES)]},
        "marker": {
            "color": colour,
            "size": 9,
            "symbol": ["circle-open" if point["batch_size"] in shaky else "circle" for point in points],
        },
        "hovertemplate": f"{name}, batch %{{x}}: %{{y:.4g}} {unit}<extra></extra>",
    }
    ends = [(point.get("step_low_ms"), point.get("step_high_ms")) for point in points]
    if key == "step_ms" and any(None not in end for end in ends):
        above = [_gap(high, value) for (_, high), value in zip(ends, values, strict=True)]
        below = [_gap(value, low) for (low, _), value in zip(ends, values, strict=True)]
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "thickness": 1.5,
            "color": colour,
        }
    return trace


def _gap(high: Any, low: Any) -> float:
    return round(max(0.0, high - low), 6) if is_number(high) and is_number(low) else 0.0


def _text(name: Any) -> str:
    """A name inside a chart, where plotly reads tags and templates."""
    text = plain(name)
    for char, instead in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("%{", "% {")):
        text = text.replace(char, instead)
    return text


def _chart(name: str, label: str, traces: list[dict[str, Any]], unit: str, choices: Any = ()) -> Chart:
    batches = sorted({x for trace in traces for x in trace["x"]})
    layout = {
        "xaxis": {
            "type": "log",
            "title": {"text": "batch size"},
            "tickmode": "array",
            "tickvals": batches,
            "ticktext": [f"{batch:,}" for batch in batches],
        },
        "yaxis": {"type": "log", "title": {"text": unit}},
        "showlegend": len(traces) <= _MANY,
        "legend": _LEGEND,
        "hovermode": "closest",
    }
    legend = 24 * (len(traces) // 4 + 1) if len(traces) <= _MANY else 0
    return Chart(name, label, traces, layout, 420 + legend, choices if len(choices) > 1 else ())


def _table(
    name: str, caption: str, groups: list[Group], key: str, kind: Any, unstable: Mapping[str, Any]
) -> Table:
    batches = sorted({point["batch_size"] for group in groups for point in _points(group, key)})
    columns = [Column("Network", "code"), *(Column(f"batch {batch:,}", kind) for batch in batches)]
    marked = any(unstable.values())
    columns += [Column("read with care at batch")] if marked else []
    body = []
    for group in groups:
        at = {point["batch_size"]: point[key] for point in _points(group, key)}
        care = ", ".join(map(str, unstable.get(str(group["name"]), ())))
        body.append([group["name"], *(at.get(batch) for batch in batches), *([care] if marked else [])])
    return Table(name, caption, columns, body, searchable=len(body) > 12)

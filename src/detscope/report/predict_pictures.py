"""A prediction as a picture: latency and memory against the batch size, and where both go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detscope.report.canvas import Canvas, Point, width_of, write_canvas
from detscope.report.figures import count, is_number, mapping, number, percent, plain, rows, with_unit
from detscope.report.memory_colours import (
    BLUE,
    CATEGORY_COLOURS,
    FAINT,
    GREEN,
    HAIRLINE,
    INK,
    ORANGE,
    VERMILION,
    category_name,
    lighter,
)
from detscope.report.palette import Colour
from detscope.report.plot_panel import Frame, Panel, log_panel
from detscope.report.score_picture import draw_scores
from detscope.report.terminal_predict import heading

__all__ = ["draw_prediction", "draw_scores", "prediction_canvas"]

WIDTH = 1280
_LEFT, _RIGHT, _GAP = 92.0, 44.0, 108.0
_PLOT_TOP, _PLOT_HEIGHT = 168.0, 330.0
_BARS_TOP = _PLOT_TOP + _PLOT_HEIGHT + 124
_BAR_ROW = 34.0
_MOST_BARS = 8
_BAND = 0.78  # how much lighter a band is than its line
_FITS: dict[str, Colour] = {"fits": GREEN, "too close to call": ORANGE, "does not fit": VERMILION}
_UNKNOWN: Colour = (130, 130, 138)


def draw_prediction(found: Mapping[str, Any], path: Path) -> Path:
    """Draw a prediction into a .png or .svg; returns where it is."""
    return write_canvas(prediction_canvas(found), path)


def prediction_canvas(found: Mapping[str, Any]) -> Canvas:
    """Latency and memory against the batch size, and below them where both go."""
    timed = any(is_number(row.get("latency_ms")) for row in rows(found, "rows"))
    bars = _bars(found)
    longest = max((len(parts) for _, parts in bars), default=0)
    canvas = Canvas(WIDTH, round(_BARS_TOP + 46 + _BAR_ROW * longest + 34))
    _headline(canvas, found)
    middle = (WIDTH + _LEFT - _RIGHT) / 2
    halves = [(_LEFT, middle - _GAP / 2), (middle + _GAP / 2, WIDTH - _RIGHT)]
    if timed:
        _latency(canvas, found, halves[0])
        _memory(canvas, found, halves[1])
    else:
        _memory(canvas, found, (_LEFT, WIDTH - _RIGHT))
    for (title, parts), (left, right) in zip(bars, halves, strict=False):
        _bar_list(canvas, title, parts, left, right)
    return canvas


def _headline(canvas: Canvas, found: Mapping[str, Any]) -> None:
    canvas.text(28, 40, heading(found), 28, INK, most=WIDTH - 56)
    model = mapping(found, "device_model")
    words = ["no step was run"]
    if model:
        words.append(f"device model of {count(model.get('rows'))} measured steps; bands: 90 % intervals")
    else:
        words.append("memory by simulation; latency: no device model")
    if any(row.get("extrapolated") for row in rows(found, "rows")):
        words.append("rings: far from what was measured")
    canvas.text(28, 74, "; ".join(words), 17, FAINT, most=WIDTH - 56)
    x = 28.0
    used = {_word(row) for row in rows(found, "rows")}
    for word, colour in (*_FITS.items(), ("cannot tell whether it fits", _UNKNOWN)):
        if word.split(" whether")[0] in used:
            canvas.dot(x + 6, 106, colour, 6)
            canvas.text(x + 20, 106, word, 16, INK)
            x += 48 + width_of(word, 16)


def _word(row: Mapping[str, Any]) -> str:
    return str(row.get("fits")).partition(": ")[0]


def _latency(canvas: Canvas, found: Mapping[str, Any], between: tuple[float, float]) -> None:
    shown = [row for row in rows(found, "rows") if is_number(row.get("latency_ms"))]
    panel = _panel(canvas, found, shown, "latency_ms", between, "Time of a step, ms", _plain)
    _curve(canvas, panel, shown, "latency_ms", BLUE)
    best = found.get("best_batch_for_throughput")
    for row in shown:
        if row["batch"] == best:
            words = f"best batch {best}: {number(row.get('images_per_s'))} images/s"
            canvas.text(panel.left + 12, panel.top + 16, words, 16, INK)


def _memory(canvas: Canvas, found: Mapping[str, Any], between: tuple[float, float]) -> None:
    shown = rows(found, "rows")
    whole = all(is_number(row.get("needed_bytes")) for row in shown)
    key = "needed_bytes" if whole else "reserved_bytes"
    others = (
        [("allocated", "allocated_bytes")] if whole else [("on this CPU, allocated", "cpu_allocated_bytes")]
    )
    others = [(name, other) for name, other in others if all(is_number(row.get(other)) for row in shown)]
    name = "Memory that the process needs" if whole else "Memory, as CUDA's allocator would reserve it"
    extra = [float(row[other]) for _, other in others for row in shown]
    panel = _panel(canvas, found, shown, key, between, name, _bytes, extra)
    _limit(canvas, found, panel)
    for label, other in others:
        points = [(panel.x_place(row["batch"]), panel.y_place(row[other])) for row in shown]
        canvas.line(points, FAINT, 2)
        canvas.text(points[0][0], min(points[0][1] + 16, panel.bottom - 10), label, 14, FAINT)
    _curve(canvas, panel, shown, key, BLUE)


def _panel(
    canvas: Canvas,
    found: Mapping[str, Any],
    shown: Sequence[Mapping[str, Any]],
    key: str,
    between: tuple[float, float],
    title: str,
    write: Any,
    extra: Sequence[float] = (),
) -> Panel:
    frame = Frame(between[0], _PLOT_TOP, between[1], _PLOT_TOP + _PLOT_HEIGHT, title, "batch size")
    values = [float(row[key]) for row in shown] + list(extra)
    values += [float(end) for row in shown for end in row.get(f"{key}_interval") or ()]
    batches = [float(row["batch"]) for row in shown]
    limit = found.get("limit_bytes")
    if key != "latency_ms" and is_number(limit) and limit < 8 * max(values):
        values.append(limit * 1.25)
    largest = found.get("largest_batch_that_fits")
    reach = [*batches, largest] if largest and largest < 4 * max(batches) else batches
    return log_panel(canvas, frame, reach, values, write, x_ticks=sorted(set(batches)))


def _curve(
    canvas: Canvas, panel: Panel, shown: Sequence[Mapping[str, Any]], key: str, colour: Colour
) -> None:
    """Band, line and a dot per batch in the colour of what it means for the memory."""

    def at(row: Mapping[str, Any], value: float) -> Point:
        return panel.x_place(row["batch"]), panel.y_place(value)

    held = [row for row in shown if row.get(f"{key}_interval")]
    lower = [at(row, row[f"{key}_interval"][0]) for row in held]
    upper = [at(row, row[f"{key}_interval"][1]) for row in held]
    if len(held) > 1:
        canvas.area([*upper, *reversed(lower)], lighter(colour, _BAND))
    elif held:
        canvas.line([lower[0], upper[0]], lighter(colour, 0.5), 4)
    canvas.line([at(row, row[key]) for row in shown], colour, 3)
    for row in shown:
        x, y = at(row, row[key])
        canvas.dot(x, y, _FITS.get(_word(row), _UNKNOWN), 7, hollow=bool(row.get("extrapolated")))


def _limit(canvas: Canvas, found: Mapping[str, Any], panel: Panel) -> None:
    limit = found.get("limit_bytes")
    if not is_number(limit):
        return
    y = panel.y_place(limit)
    text = f"limit {with_unit(limit, 'bytes')}"
    if panel.top <= y <= panel.bottom:
        canvas.line([(panel.left, y), (panel.right, y)], VERMILION, 2, dashed=True)
        canvas.text(panel.left + 12, y - 14, text, 15, VERMILION)
    else:
        where = "above" if y < panel.top else "below"
        canvas.text(panel.left + 12, panel.top + 16, f"{text}: {where} all of this", 15, VERMILION)
    largest = found.get("largest_batch_that_fits")
    if not largest:
        return
    x = panel.x_place(largest)
    words = f"largest that fits: {count(largest)}"
    if panel.left <= x <= panel.right:
        canvas.line([(x, panel.top), (x, panel.bottom)], GREEN, 2, dashed=True)
        fits_left = x - width_of(words, 16) - 12 > panel.left
        canvas.text(
            x + (-10 if fits_left else 10), panel.bottom - 18, words, 16, GREEN, "r" if fits_left else "l"
        )
    else:
        canvas.text(panel.right - 10, panel.bottom - 18, words, 16, GREEN, "r")


def _bars(found: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, float, str, Colour]]]]:
    """Where time goes (if known) and where memory goes: name, length, words, colour."""
    shown = sorted(rows(found, "rows"), key=lambda one: int(one["batch"]))
    row = next((one for one in shown if one["batch"] == found.get("places_at_batch")), shown[-1])
    made = []
    shares = mapping(found, "latency_by_stage")
    if shares:
        parts = [(plain(name), share, percent(share), BLUE) for name, share in _largest(shares)]
        made.append((f"Where the time goes, batch {row['batch']}", parts))
    here = mapping(row, "cpu_categories") if not is_number(row.get("needed_bytes")) else {}
    where = " on this CPU" if here else ""
    categories = [(name, size) for name, size in _largest(here or mapping(row, "categories")) if size]
    made.append(
        (
            f"What the peak is made of{where}, batch {row['batch']}",
            [
                (category_name(name), size, with_unit(size, "bytes"), CATEGORY_COLOURS.get(name, _UNKNOWN))
                for name, size in categories
            ],
        )
    )
    stages = mapping(found, "memory_by_stage")
    if stages and len(made) < 2:
        kind = "Activations" if found.get("stage") != "inference" else "Tensors made"
        activations = CATEGORY_COLOURS["activations"]
        parts = [
            (plain(name), size, with_unit(size, "bytes"), activations)
            for name, size in _largest(stages)
            if size
        ]
        made.append((f"{kind} by stage, batch {row['batch']}", parts))
    return made


def _largest(parts: Mapping[str, Any]) -> list[tuple[str, float]]:
    ordered = sorted(((name, float(size)) for name, size in parts.items()), key=lambda item: -item[1])
    rest = sum(size for _, size in ordered[_MOST_BARS - 1 :])
    if len(ordered) <= _MOST_BARS:
        return ordered
    return [*ordered[: _MOST_BARS - 1], (f"{len(ordered) - _MOST_BARS + 1} more", rest)]


def _bar_list(
    canvas: Canvas,
    title: str,
    parts: Sequence[tuple[str, float, str, Colour]],
    left: float,
    right: float,
) -> None:
    canvas.text(left, _BARS_TOP, title, 20, INK, most=right - left)
    names = min(190, max((width_of(name, 16) for name, *_ in parts), default=0) + 14)
    words = max((width_of(text, 16) for _, _, text, _ in parts), default=0) + 12
    room = right - left - names - words
    longest = max((size for _, size, *_ in parts), default=0.0) or 1.0
    for place, (name, size, text, colour) in enumerate(parts):
        y = _BARS_TOP + 42 + _BAR_ROW * place
        canvas.text(left + names - 10, y, name, 16, INK, "r", most=names - 10)
        length = max(2.0, room * size / longest)
        canvas.box(left + names, y - 11, left + names + length, y + 11, colour)
        canvas.text(left + names + length + 8, y, text, 16, INK)
    canvas.line(
        [(left + names, _BARS_TOP + 24), (left + names, _BARS_TOP + 60 + _BAR_ROW * (len(parts) - 1))],
        HAIRLINE,
    )


def _plain(value: float) -> str:
    return f"{value:,.6g}"


def _bytes(value: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{value / size:,.4g} {unit}"
    return f"{value:,.0f}"

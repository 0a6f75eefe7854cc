"""Predictions as charts: latency and memory against the batch size, where both go, and how wrong they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from detscope.analyze.memory.figures import category_name
from detscope.analyze.prediction import (
    CLOSE,
    Ends,
    PredictedStep,
    Prediction,
    PredictionPoint,
    ScorePanel,
    list_score_panels,
)
from detscope.report.colours import BLUE, CATEGORY_COLOURS, GREEN, GREY, ORANGE, PALETTE, RED
from detscope.report.figures import count, number, percent, with_unit
from detscope.report.model import Axis, Chart, Mark, Series
from detscope.report.render.picture import write_picture
from detscope.report.verbs.prediction import row_of_places, write_grounds, write_heading

_MOST_BARS, _MOST_NAMES = 8, 14
_FITS = {"fits": GREEN, "too close to call": ORANGE, "does not fit": RED, "cannot tell": GREY}
_UNTOLD = "cannot tell whether it fits"


def draw_prediction(found: Prediction, path: Path) -> Path:
    """Draw a prediction into a .png or .svg; returns where it is."""
    grounds = "memory by simulation; latency: no device model"
    if found.device_model is not None:
        grounds = f"device model of {write_grounds(found)}; bars: 90 % intervals"
    far = "; rings: far from what was measured" if any(row.extrapolated for row in found.rows) else ""
    note = f"no step was run; {grounds}{far}"
    return write_picture(path, prediction_charts(found), title=write_heading(found), note=note)


def prediction_charts(found: Prediction) -> list[Chart]:
    """Latency and memory against the batch size, and where both go."""
    charts = [_memory_chart(found), *_part_charts(found)]
    timed = [row for row in found.rows if row.latency_ms is not None]
    return [_latency_chart(found, timed), *charts] if timed else charts


def _latency_chart(found: Prediction, rows: Sequence[PredictedStep]) -> Chart:
    points = [(row, row.latency_ms or 0.0, row.latency_ms_interval) for row in rows]
    best = next((row for row in rows if row.batch == found.best_batch_for_throughput), None)
    marks = []
    if best is not None:
        marks.append(Mark(best.batch, f"best batch {best.batch}: {number(best.images_per_s)} images/s"))
    return _batch_chart("latency", "Time of a step, ms", _curve_of("ms", points), "ms", rows, marks)


def _memory_chart(found: Prediction) -> Chart:
    rows = found.rows
    if all(row.needed_bytes is not None for row in rows):
        title, other = "Memory that the process needs", "allocated"
        points = [(row, (row.needed_bytes or 0.0) / 1e6, _in_mb(row.needed_bytes_interval)) for row in rows]
        others = [row.allocated_bytes for row in rows]
    else:
        title, other = "Memory, as CUDA's allocator would reserve it", "on this CPU, allocated"
        points = [(row, (row.reserved_bytes or 0.0) / 1e6, None) for row in rows]
        others = [row.cpu_allocated_bytes for row in rows]
    series = _curve_of("MB", points)
    batches = [row.batch for row in rows]
    known = [value / 1e6 for value in others if value is not None]
    if len(known) == len(rows):
        series.append(Series(other, batches, known, GREY))
    marks, words = [], []
    if found.limit_bytes is not None:
        text, limit = f"limit {with_unit(found.limit_bytes, 'bytes')}", found.limit_bytes / 1e6
        highest = max((value for _, value, _ in points), default=0.0)
        if limit < 8 * highest:
            ends = [min(batches), max(max(batches), 2 * min(batches))]
            series.append(Series(text, ends, [limit, limit], RED, dash="dash", silent=True))
        else:
            words.append(f"{text}: above all of this")
        largest = found.largest_batch_that_fits
        if largest:
            word = f"largest that fits: {count(largest)}"
            near = largest < 4 * max(batches)
            marks += [Mark(largest, word)] if near else []
            words += [] if near else [word]
    return _batch_chart("memory", "; ".join([title, *words]), series, "MB", rows, marks)


def _in_mb(ends: Ends | None) -> Ends | None:
    return (ends[0] / 1e6, ends[1] / 1e6) if ends else None


def _curve_of(unit: str, points: Sequence[tuple[PredictedStep, float, Ends | None]]) -> list[Series]:
    """A line with intervals, and a dot per batch in the colour of what it means for the memory."""
    line = Series(
        "predicted",
        [row.batch for row, _, _ in points],
        [value for _, value, _ in points],
        BLUE,
        error_up=[ends[1] - value if ends else 0.0 for _, value, ends in points],
        error_down=[value - ends[0] if ends else 0.0 for _, value, ends in points],
    )
    dots = []
    for word, colour in _FITS.items():
        own = [(row, value) for row, value, _ in points if row.fits == word]
        if own:
            dots.append(
                Series(
                    _UNTOLD if word == "cannot tell" else word,
                    [row.batch for row, _ in own],
                    [value for _, value in own],
                    colour,
                    "points",
                    hollow=[bool(row.extrapolated) for row, _ in own],
                    details=[f"batch {row.batch}: {number(value)} {unit}" for row, value in own],
                )
            )
    return [line, *dots]


def _batch_chart(
    name: str,
    label: str,
    series: Sequence[Series],
    unit: str,
    rows: Sequence[PredictedStep],
    marks: Sequence[Mark],
) -> Chart:
    ticks = sorted({float(row.batch) for row in rows})
    across = Axis("batch size", "log", ticks=ticks)
    return Chart(name, label, series, across, Axis(unit, "log"), marks=marks, height=400, legend="bottom")


def _part_charts(found: Prediction) -> list[Chart]:
    """Where time goes (if known) and where memory goes."""
    if not found.rows:
        return []
    row = row_of_places(found)
    charts = []
    if found.latency_by_stage:
        shares = [(part.name, part.share) for part in found.latency_by_stage]
        texts = [percent(share) for _, share in _largest_parts(shares)]
        title = f"Where the time goes, batch {row.batch}"
        charts.append(
            _bar_chart("time-parts", title, _largest_parts(shares), texts, BLUE, "share of the step")
        )
    here = row.cpu_categories if row.needed_bytes is None else ()
    sizes = [(part.name, part.bytes) for part in here or row.categories if part.bytes]
    where = " on this CPU" if here else ""
    charts.append(_byte_bars("peak-parts", f"What the peak is made of{where}, batch {row.batch}", sizes))
    stages = [(part.name, part.bytes) for part in found.memory_by_stage if part.bytes]
    if stages and len(charts) < 2:
        kind = "Activations" if found.stage != "inference" else "Tensors made"
        charts.append(_byte_bars("stage-parts", f"{kind} by stage, batch {row.batch}", stages))
    return charts


def _byte_bars(name: str, label: str, parts: Sequence[tuple[str, float]]) -> Chart:
    shown = _largest_parts(parts)
    texts = [with_unit(size, "bytes") for _, size in shown]
    colours = [CATEGORY_COLOURS.get(part, CATEGORY_COLOURS["activations"]) for part, _ in shown]
    bars = [(category_name(part), size / 1e6) for part, size in shown]
    return _bar_chart(name, label, bars, texts, colours, "MB")


def _largest_parts(parts: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    ordered = sorted(parts, key=lambda part: -part[1])
    if len(ordered) <= _MOST_BARS:
        return ordered
    rest = ordered[_MOST_BARS - 1 :]
    return [*ordered[: _MOST_BARS - 1], (f"{len(rest)} more", sum(size for _, size in rest))]


def _bar_chart(
    name: str,
    label: str,
    parts: Sequence[tuple[str, float]],
    texts: Sequence[str],
    colour: str | Sequence[str],
    unit: str,
) -> Chart:
    names, sizes = [part for part, _ in parts], [size for _, size in parts]
    series = Series(label, sizes, names, colour, "bars", texts=texts)
    height = 110 + 30 * len(parts)
    return Chart(name, label, [series], Axis(unit), Axis(falling=True), height=height, legend="none")


def draw_scores(points: Sequence[PredictionPoint], path: Path) -> Path:
    """Draw how wrong a predictor is into a .png or .svg: one chart per target, protocol and method."""
    charts = score_charts(points)
    note = (
        "every point was hidden from the model that predicted it; dotted: within 10 %; both axes logarithmic"
    )
    if not charts:
        note = "nothing to draw: no point has both figures"
    return write_picture(path, charts, title="Predicted against measured", note=note)


def score_charts(points: Sequence[PredictionPoint]) -> list[Chart]:
    """Predicted against measured, one colour per network; latencies in ms, memory in MB."""
    panels = list_score_panels(points)
    names = sorted({point.network for panel in panels for point in panel.points})
    return [_score_chart(number, panel, names) for number, panel in enumerate(panels, 1)]


def _score_chart(number_of: int, panel: ScorePanel, names: Sequence[str]) -> Chart:
    scale, unit = (1e-6, "MB") if panel.target == "memory" else (1.0, "ms")
    pairs = [
        (point.network, (point.measured or 0.0) * scale, (point.predicted or 0.0) * scale)
        for point in panel.points
    ]
    ends = [min(min(x, y) for _, x, y in pairs), max(max(x, y) for _, x, y in pairs)]
    close = [[end * factor for end in ends] for factor in (1 + CLOSE, 1 - CLOSE)]
    series = [Series("as measured", ends, ends, GREY, dash="dash", width=1, silent=True)]
    series += [
        Series(f"{sign}10 %", ends, line, GREEN, dash="dot", width=1, silent=True)
        for sign, line in zip(("+", "-"), close, strict=True)
    ]
    errors = panel.errors
    for place, row in enumerate(errors.by_network):
        own = [(x, y) for network, x, y in pairs if network == row.network]
        index = names.index(row.network)
        name = f"{row.network} {percent(row.error)}"
        if place >= _MOST_NAMES:
            name = f"and {len(errors.by_network) - _MOST_NAMES} more" if place == _MOST_NAMES else ""
        series.append(
            Series(
                name,
                [x for x, _ in own],
                [y for _, y in own],
                PALETTE[index % len(PALETTE)],
                "points",
                hollow=[index >= len(PALETTE)] * len(own),
                details=[
                    f"{row.network}: predicted {number(y)}, measured {number(x)} {unit}" for x, y in own
                ],
            )
        )
    words = [word.replace("-", " ") for word in (panel.target, panel.protocol, panel.method) if word]
    within = f"{percent(errors.within_10_percent)} of {count(errors.rows)} within 10 %"
    label = f"{', '.join(words)}: mean error {percent(errors.mean)}, {within}"
    across, up = Axis(f"measured, {unit}", "log"), Axis(f"predicted, {unit}", "log")
    return Chart(f"scores-{number_of}", label, series, across, up, height=460, legend="bottom")

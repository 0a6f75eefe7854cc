"""A run for TensorBoard, in its built-in tabs: scalars, images, text and hparams; no plugin, no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from detscope.analyze.drawing import ReportData
from detscope.analyze.step.series import start_of_steps_ns, step_points
from detscope.report.drawing import Picture, draw, enlarged
from detscope.report.figures import ABSENT, plain
from detscope.report.model import Chart
from detscope.report.picture_files import encode, unique_stem
from detscope.report.render import event_file
from detscope.report.render.markdown import sections_markdown
from detscope.report.render.picture import chart_png, has_matplotlib
from detscope.report.sections import make_sections
from detscope.runs.atomic import storage_error
from detscope.runs.reader import Run

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary


def write_tensorboard(data: ReportData, pictures: Sequence[Picture]) -> Path:
    """Write RUN/tb from the run's sections, tables and pictures; `tensorboard --logdir` opens it."""
    folder = data.run.folder / "tb"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise storage_error(folder, error) from error
    event_file.write_events(folder / event_file.FILE_NAME, _events_of(data, pictures))
    return folder


def _events_of(data: ReportData, pictures: Sequence[Picture]) -> Iterator[Event]:
    started_s = _start_time_s(data.run)
    sections, _ = make_sections(data)
    shown = [section for section in sections if not section.brief_only]
    texts = [event_file.text(section.id, sections_markdown([section], most_rows=None)) for section in shown]
    yield event_file.event(started_s, 0, [*texts, *_hparams_of(data, started_s)])
    yield event_file.event(started_s, 0, _metrics_of(data))
    charts = [block for section in shown for block in section.blocks if isinstance(block, Chart)]
    for chart in charts if has_matplotlib() else ():
        png = chart_png(chart)
        width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
        image = event_file.image(f"charts/{chart.id}", png, width=width, height=height)
        yield event_file.event(started_s, 0, [image])
    taken: set[str] = set()
    for picture in pictures:
        pixels = draw(enlarged(picture))
        tag = f"pictures/{unique_stem(picture.name, taken)}"
        image = event_file.image(tag, encode(pixels)[0], width=pixels.shape[1], height=pixels.shape[0])
        yield event_file.event(started_s, 0, [image])
    yield from _scalars_of(data.run, started_s)


def _start_time_s(run: Run) -> float:
    """When the run began, which its folder's name says; a renamed run has the time of its description."""
    try:
        return datetime.strptime(run.folder.name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return (run.folder / "run.json").stat().st_mtime


def _scalars_of(run: Run, started_s: float) -> Iterator[Event]:
    """One event per step with all its values."""
    began_ns = start_of_steps_ns(run)
    first_ns = min(began_ns.values(), default=0)
    points = sorted(step_points(run), key=lambda point: point.step)
    at_ns = first_ns
    for step, values in groupby(points, key=lambda point: point.step):
        at_ns = began_ns.get(step, at_ns)  # accuracy is known after the last step of an epoch
        time_s = started_s + (at_ns - first_ns) / 1e9
        # TensorBoard takes `/` for a level of its own
        named = [(f"{point.group}/{plain(point.name).replace('/', '|')}", point.value) for point in values]
        yield event_file.event(time_s, step, [event_file.scalar(tag, value) for tag, value in named])


def _hparams_of(data: ReportData, started_s: float) -> list[Summary.Value]:
    summary = data.summary
    parameters: dict[str, str | float] = {
        "model": plain((summary.model.name if summary.model else None) or "unnamed"),
        "device": plain(summary.device or ABSENT),
        "batch_size": float(summary.batch_size) if summary.batch_size else ABSENT,
        "precision": plain(summary.precision or ABSENT),
    }
    shown = {tag: name for tag, name, _ in _metric_values(data)}
    return event_file.parameters_and_metrics(parameters, shown, data.run.folder.name, started_s)


def _metric_values(data: ReportData) -> list[tuple[str, str, float]]:
    """The scalar behind each metric of the HParams tab, the name shown there, and its value."""
    summary = data.summary
    found = (
        ("figures/latency_p50_ms", "latency p50 (ms)", summary.step_ms.p50),
        ("figures/images_per_s", "images/s", summary.images_per_s),
    )
    return [(tag, name, value) for tag, name, value in found if value is not None and math.isfinite(value)]


def _metrics_of(data: ReportData) -> list[Summary.Value]:
    return [event_file.scalar(tag, value) for tag, _, value in _metric_values(data)]

"""A run for TensorBoard, in its built-in tabs: scalars, images, text and hparams; no plugin, no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from detscope.analyze.step.series import start_of_steps_ns, step_points
from detscope.report.bar_chart import bar_chart
from detscope.report.drawing import Picture, draw, enlarged
from detscope.report.figures import ABSENT, interval, is_number, mapping, number, percent, plain, rows
from detscope.report.picture_files import encode, unique_stem
from detscope.report.render import event_file
from detscope.report.render.markdown import name_cell, sentence, table
from detscope.report.terminal_device import device_name
from detscope.report.terminal_tables import top_modules
from detscope.runs.atomic import storage_error
from detscope.runs.reader import Run, load_run

Summary = Mapping[str, Any]

# the scalar behind each metric of the HParams tab -> the name shown there
_METRICS = {"figures/latency_p50_ms": "latency p50 (ms)", "figures/images_per_s": "images/s"}
# columns of the tables of stages and modules, of which a run has some, and how each is written
_COLUMNS: dict[str, Callable[[Any], str]] = {
    "forward_ms": number,
    "backward_ms": number,
    "total_ms": number,
    "ms": number,
    "self_ms": number,
    "share": percent,
    "p50": number,
    "ci95": interval,
    "calls": number,
}


def write_tensorboard(run_folder: Path, summary: dict[str, Any], pictures: Sequence[Picture]) -> Path:
    """Write RUN/tb from the run's tables, its summary and pictures; `tensorboard --logdir` opens it."""
    run = load_run(run_folder)
    folder = run_folder / "tb"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise storage_error(folder, error) from error
    event_file.write_events(folder / event_file.FILE_NAME, _events(run, summary, pictures))
    return folder


def _events(run: Run, summary: Summary, pictures: Sequence[Picture]) -> Iterator[Any]:
    started_s = _started_s(run)
    yield event_file.event(started_s, 0, [*_texts(summary), *_hparams(run, summary, started_s)])
    yield event_file.event(started_s, 0, _metrics(summary))
    yield event_file.event(started_s, 0, _charts(summary))
    taken: set[str] = set()
    for picture in pictures:
        tag = f"pictures/{unique_stem(picture.name, taken)}"
        yield event_file.event(started_s, 0, [_image(tag, draw(enlarged(picture)))])
    yield from _scalars(run, started_s)


def _started_s(run: Run) -> float:
    """When the run began, which its folder's name says; a renamed run has the time of its description."""
    try:
        return datetime.strptime(run.folder.name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return (run.folder / "run.json").stat().st_mtime


def _scalars(run: Run, started_s: float) -> Iterator[Any]:
    """One event per step with all its values."""
    began_ns = start_of_steps_ns(run)
    first_ns = min(began_ns.values(), default=0)
    points = sorted(step_points(run), key=lambda point: point.step)
    at_ns = first_ns
    for step, values in groupby(points, key=lambda point: point.step):
        at_ns = began_ns.get(step, at_ns)  # accuracy is known after the last step of an epoch
        time_s = started_s + (at_ns - first_ns) / 1e9
        named = [(f"{point.group}/{_tag(point.name)}", point.value) for point in values]
        yield event_file.event(time_s, step, [event_file.scalar(tag, value) for tag, value in named])


def _tag(name: str) -> str:
    """A name that makes no groups of its own: TensorBoard takes `/` for a level."""
    return plain(name).replace("/", "|")


def _image(tag: str, pixels: Any) -> Any:
    encoded, _ = encode(pixels)
    return event_file.image(tag, encoded, width=pixels.shape[1], height=pixels.shape[0])


def _charts(summary: Summary) -> list[Any]:
    modules = top_modules(rows(summary, "modules"))
    if not modules:
        return []
    title = f"The {len(modules)} most expensive modules, {_per(summary)}"
    return [_image("modules/most_expensive", bar_chart(modules, title))]


def _per(summary: Summary) -> str:
    return "ms per step" if summary.verb != "infer" else "ms per pass"


def _texts(summary: Summary) -> Iterator[Any]:
    yield event_file.text("summary", _headline(summary))
    modules = [{**row, "self_ms": _self_ms(row)} for row in rows(summary, "modules")]
    for title, names, found in (
        ("stages", ("name",), rows(summary, "stages")),
        ("modules", ("path", "type"), modules),
    ):
        if found:
            heading = f"### {title.title()}, {_per(summary)} ({len(found)})"
            yield event_file.text(title, f"{heading}\n\n{_table(title[:-1], names, found)}")


def _table(what: str, names: Sequence[str], found: Sequence[Mapping[str, Any]]) -> str:
    """Names and the figures that these rows have; without a backward pass, no directions."""
    hidden = () if any(row.get("backward_ms") for row in found) else ("forward_ms", "backward_ms")
    columns = [key for key in _COLUMNS if key not in hidden and any(key in row for row in found)]
    cells = [
        [name_cell(row.get(name)) for name in names] + [_COLUMNS[key](row.get(key)) for key in columns]
        for row in found
    ]
    return table([what, *names[1:]], [key.removesuffix("_ms") for key in columns], cells)


def _self_ms(module: Mapping[str, Any]) -> float | None:
    parts = [module.get(f"self_{direction}_ms") for direction in ("forward", "backward")]
    known = [float(part) for part in parts if part is not None and is_number(part)]
    return sum(known) if known else None


def _headline(summary: Summary) -> str:
    latency = _latency(summary)
    facts = {
        "model": _model(summary),
        "device": device_name(summary),
        "batch size": summary.batch_size,
        "precision": summary.precision,
        "status": summary.status,
        "weights": mapping(summary, "weights").get("note"),
        "latency p50, ms": f"{number(latency.get('p50'))} {interval(latency.get('ci95'))}",
        "samples": latency.get("n"),
        "images/s": number(summary.images_per_s),
    }
    lines = [[sentence(name), sentence(ABSENT if fact is None else fact)] for name, fact in facts.items()]
    said = sentence(summary.verdict or "")
    return f"{said}\n\n{table(['what', 'value'], [], lines)}"


def _latency(summary: Summary) -> Mapping[str, Any]:
    """The headline: of an image where the run inferred, of a step where it trained."""
    return mapping(summary, "latency_ms") or mapping(summary, "step_ms")


def _model(summary: Summary) -> str:
    model = summary.model
    name = model.get("name") if isinstance(model, Mapping) else model
    return plain(name) if name else "unnamed"


def _hparams(run: Run, summary: Summary, started_s: float) -> list[Any]:
    batch_size = summary.batch_size
    parameters: dict[str, Any] = {
        "model": _model(summary),
        "device": plain(device_name(summary) or ABSENT),
        "batch_size": float(batch_size) if is_number(batch_size) and batch_size else ABSENT,
        "precision": plain(summary.precision or ABSENT),
    }
    shown = {tag: name for tag, name in _METRICS.items() if tag in _metric_values(summary)}
    return event_file.parameters_and_metrics(parameters, shown, run.folder.name, started_s)


def _metric_values(summary: Summary) -> dict[str, float]:
    found = zip(_METRICS, (_latency(summary).get("p50"), summary.images_per_s), strict=True)
    return {tag: float(value) for tag, value in found if is_number(value) and value is not None}


def _metrics(summary: Summary) -> list[Any]:
    values = _metric_values(summary).items()
    return [event_file.scalar(tag, value) for tag, value in values if math.isfinite(value)]

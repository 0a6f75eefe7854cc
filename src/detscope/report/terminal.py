"""A run's summary on a terminal. Shows what `analyze` found and computes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from detscope.report import terminal_course, terminal_device, terminal_eval, terminal_infer
from detscope.report.figures import (
    CANNOT_TELL,
    count,
    interval,
    is_number,
    mapping,
    number,
    percent,
    plain,
    rows,
    sentences,
    with_unit,
)
from detscope.report.memory_terminal import render_memory
from detscope.report.terminal_advice import render_advice
from detscope.report.terminal_ranks import ranks_lines, ranks_table
from detscope.report.terminal_tables import (
    loader_table,
    modules_table,
    operators_table,
    phases_table,
    stages_table,
    telemetry_table,
)
from detscope.report.verbs.prediction import write_compared

Summary = Mapping[str, Any]

_RANDOM_WEIGHTS = "random weights: proposals and NMS load differ from a trained model"
_SHOWN_OUTLIERS = 5
_LABEL_CELLS = 11


def render(summary: Summary, console: Console, *, after_training: bool = False) -> None:
    """Print a run: what it was, the verdict, where the time goes, what it cost, where it is."""
    imported = summary.get("verb") == "import"
    _block(console, terminal_device.source_lines(summary) if imported else _header_lines(summary))
    verdict = summary.get("verdict")
    console.print(Panel(Text(plain(verdict) if verdict else CANNOT_TELL, style="bold"), title="verdict"))
    if summary.get("verb") == "eval":
        _render_evaluation(summary, console, after_training)
        return
    infers = summary.get("verb") == "infer"
    if not imported or mapping(summary, "step_ms").get("n"):
        _block(console, terminal_infer.latency_lines(summary) if infers else _step_lines(summary))
    ascii_only = console.options.ascii_only
    for table in _inference_tables(summary, ascii_only) if infers else _training_tables(summary, ascii_only):
        if table is not None:
            console.print()
            console.print(table)
    console.print()
    _block(console, ranks_lines(summary))
    terminal_device.render_device(summary, console)
    if infers:
        _block(console, terminal_infer.detection_lines(summary))
        _block(console, terminal_infer.memory_lines(summary))
    elif not imported:
        _block(console, terminal_course.course_lines(summary))
        _block(console, _loader_lines(summary))
    _block(console, _content_lines(summary))
    if not imported:
        _block(console, _honesty_lines(summary))
    _block(console, terminal_infer.skipped_lines(summary))
    render_memory(summary, console)
    _block(console, _predicted_lines(summary))
    render_advice(summary, console)
    if machine := telemetry_table(summary):
        console.print()
        console.print(machine)
        console.print()
    _block(console, _note_lines(summary))
    console.print()
    _block(console, _place_lines(summary, after_training))


def _render_evaluation(summary: Summary, console: Console, after_training: bool) -> None:
    _block(console, terminal_eval.evaluation_lines(summary))
    for make in (terminal_eval.figures_table, terminal_eval.voc_table, terminal_eval.classes_table):
        if table := make(summary):
            console.print()
            console.print(table)
    console.print()
    _block(console, terminal_eval.voc_line(summary))
    _block(console, terminal_eval.worst_lines(summary))
    _block(console, _note_lines(summary))
    console.print()
    _block(console, _place_lines(summary, after_training))


def _training_tables(summary: Summary, ascii_only: bool) -> Iterator[Table | None]:
    yield terminal_course.epochs_table(summary)
    yield phases_table(summary, ascii_only=ascii_only)
    yield ranks_table(summary)
    yield stages_table(summary)
    yield modules_table(summary)
    yield operators_table(summary)
    yield loader_table(summary)


def _inference_tables(summary: Summary, ascii_only: bool) -> Iterator[Table | None]:
    yield terminal_infer.stages_table(summary, ascii_only)
    yield terminal_infer.modules_table(summary)
    yield operators_table(summary)
    yield terminal_infer.content_table(summary)
    yield terminal_infer.memory_table(summary)


def _block(console: Console, lines: Iterator[tuple[str, str, str]]) -> None:
    """Lines of a label, a text and a style; long texts go on under themselves, never under the label."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_LABEL_CELLS, no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, text, style in lines:
        grid.add_row(label, Text(text, style=style))
    if grid.row_count:
        console.print(grid)


def _header_lines(summary: Summary) -> Iterator[tuple[str, str, str]]:
    model = mapping(summary, "model")
    details = [plain(model["family"])] if model.get("family") else []
    if is_number(model.get("parameters")):
        details.append(f"{count(model['parameters'])} parameters")
    name = plain(model.get("name") or CANNOT_TELL)
    yield "model", name + (f" ({', '.join(details)})" if details else ""), "bold"
    yield from _weights_lines(mapping(summary, "weights"))
    yield "data", _data_text(mapping(summary, "data")), ""
    yield "on", _setting_text(summary), ""
    status = summary.get("status")
    if status != "ok":
        reason = f": {plain(summary['reason'])}" if summary.get("reason") else ""
        yield "status", plain(status or CANNOT_TELL) + reason, "bold red"


def _weights_lines(weights: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    kind = weights.get("kind")
    note = weights.get("note") or (_RANDOM_WEIGHTS if kind == "random" else "")
    text = plain(kind or CANNOT_TELL) + (f": {plain(note)}" if note else "")
    yield "weights", text, "yellow" if kind == "random" else ""


def _data_text(data: Mapping[str, Any]) -> str:
    parts = [plain(data.get("name") or CANNOT_TELL)]
    for key in ("images", "classes"):
        value = data.get(key)
        if is_number(value):
            parts.append(f"{value:,.0f} {key}")
        elif isinstance(value, list | tuple):
            parts.append(f"{len(value)} {key}")
    return ", ".join(parts)


def _setting_text(summary: Summary) -> str:
    batch = summary.get("batch_size")
    parts = [
        terminal_device.device_name(summary),
        f"batch {number(batch, 0)}" if is_number(batch) else None,
        summary.get("precision"),
    ]
    level = summary.get("level")
    parts.append(f"level {level}" if level else None)
    return ", ".join(plain(part) for part in parts if part) or CANNOT_TELL


def _step_lines(summary: Summary) -> Iterator[tuple[str, str, str]]:
    step = mapping(summary, "step_ms")
    if is_number(step.get("p50")):
        text = f"median {with_unit(step['p50'], 'ms')}, 95 % interval {interval(step.get('ci95'))}"
        if is_number(step.get("n")):
            text += f", {number(step['n'], 0)} steps"
        yield "step", text, "bold"
        yield "", f"p95 {with_unit(step.get('p95'), 'ms')}, p99 {with_unit(step.get('p99'), 'ms')}", ""
    else:
        yield "step", CANNOT_TELL, "bold"
    speed = _or_cannot_tell(summary.get("images_per_s"), "images/s")
    if is_number(step.get("mean_n")) and is_number(step.get("mean")):
        many = f"all {number(step['mean_n'], 0)} measured steps, bare ones as well"
        speed += f", mean step {with_unit(step['mean'], 'ms')}, over {many}"
    yield "speed", speed, ""
    stability = mapping(summary, "stability")
    if stability.get("verdict"):
        reason = f": {plain(stability['reason'])}" if stability.get("reason") else ""
        style = "" if stability["verdict"] == "stable" else "yellow"
        yield "steadiness", plain(stability["verdict"]) + reason, style
    yield from _warmup_lines(mapping(summary, "warmup"))
    yield from _outlier_lines(summary)


def _or_cannot_tell(value: Any, unit: str) -> str:
    return with_unit(value, unit) if value is not None else CANNOT_TELL


def _warmup_lines(warmup: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if is_number(warmup.get("n")) and warmup["n"] > 0:
        first, median = (with_unit(warmup.get(key), "ms") for key in ("first_ms", "p50"))
        yield "warm-up", f"{number(warmup['n'], 0)} steps apart: first {first}, median {median}", ""


def _outlier_lines(summary: Summary) -> Iterator[tuple[str, str, str]]:
    outliers = rows(summary, "outliers")
    for index, outlier in enumerate(outliers[:_SHOWN_OUTLIERS]):
        why = f": {plain(outlier['why'])}" if outlier.get("why") else ""
        times = (
            f", {number(outlier['times_median'])} x the median"
            if is_number(outlier.get("times_median"))
            else ""
        )
        step = number(outlier.get("step"), 0)
        yield (
            "outliers" if index == 0 else "",
            f"step {step}: {with_unit(outlier.get('ms'), 'ms')}{times}{why}",
            "",
        )
    if len(outliers) > _SHOWN_OUTLIERS:
        yield "", f"and {len(outliers) - _SHOWN_OUTLIERS} more", ""


def _loader_lines(summary: Summary) -> Iterator[tuple[str, str, str]]:
    loader = mapping(summary, "loader")
    capacity, demand = loader.get("capacity_images_per_s"), loader.get("demand_images_per_s")
    if is_number(capacity) or is_number(demand):
        can, could = (_or_cannot_tell(value, "images/s") for value in (capacity, demand))
        yield "loader", f"can deliver {can}; the loop could take {could}", ""
    if is_number(loader.get("wait_ms")):
        received = loader.get("receive_ms")
        part = f", {with_unit(received, 'ms')} of it to receive what was made" if is_number(received) else ""
        yield "", f"the loop waited {with_unit(loader['wait_ms'], 'ms')} per step for data{part}", ""


def _content_lines(summary: Summary) -> Iterator[tuple[str, str, str]]:
    content = mapping(summary, "content")
    shown = {"boxes": number, "proposals": number, "pixels": count}
    parts = [
        f"{as_text(content[f'{what}_per_image'])} {what}"
        for what, as_text in shown.items()
        if is_number(content.get(f"{what}_per_image"))
    ]
    if parts:
        padding = content.get("padding_share")
        tail = f"; {percent(padding)} of the batch is padding" if is_number(padding) else ""
        yield "content", "per image " + ", ".join(parts) + tail, ""


def _honesty_lines(summary: Summary) -> Iterator[tuple[str, str, str]]:
    attributed = summary.get("backward_attributed")
    if is_number(attributed):
        by = summary.get("backward_attributed_by")
        way = f" (by {plain(by)})" if by else ""
        yield "backward", f"{percent(attributed)} of its time belongs to modules{way}", ""
    cost = mapping(summary, "overhead_ratio")
    if is_number(cost.get("value")):
        spread = (
            f", 95 % interval [{_ratio(cost, 0)}, {_ratio(cost, 1)}]"
            if interval(cost.get("ci95")) != "n/a"
            else ""
        )
        pairs = f", n {number(cost['n'], 0)}" if is_number(cost.get("n")) else ""
        yield "own cost", f"{number(cost['value'], 3)} x a step without a recorder{spread}{pairs}", ""
    else:
        why = f": {plain(cost['why'])}" if cost.get("why") else ""
        yield "own cost", CANNOT_TELL + why, ""


def _ratio(cost: Mapping[str, Any], index: int) -> str:
    return number(cost["ci95"][index], 3)


def _predicted_lines(summary: Summary) -> Iterator[tuple[str, str, str]]:
    predicted = summary.get("predicted")
    for row in predicted.compared or () if predicted else ():
        style = "yellow" if row.inside is False else ""
        yield "predicted", f"{plain(row.name)}: {plain(write_compared(row))}", style


def _note_lines(summary: Summary) -> Iterator[tuple[str, str, str]]:
    for sentence in sentences(summary, "notes"):
        yield "note", sentence, "yellow"
    for sentence in sentences(summary, "cannot_tell"):
        yield "note", f"{CANNOT_TELL}: {sentence}", "yellow"


def _place_lines(summary: Summary, after_training: bool) -> Iterator[tuple[str, str, str]]:
    run = summary.get("run")
    if not run:
        yield "run", CANNOT_TELL, ""
        return
    run = _from_here(plain(run))
    yield "run", run, "bold"
    trace = mapping(summary, "files").get("trace")
    if trace:
        yield "trace", f"{_from_here(plain(trace))}  (open in ui.perfetto.dev)", ""
    for name in ("report", "memory", "pictures", "worst", "detections", "tensorboard"):
        if place := mapping(summary, "files").get(name):
            yield name, _from_here(plain(place)), ""
    if after_training:
        yield "next", f"detscope report {shlex.quote(run)} --open", ""
    elif summary.get("level") != "ops" and (rerun := summary.get("rerun")):
        yield "next", _with_operators(plain(rerun).replace(plain(summary["run"]), run)), ""
    else:
        yield "next", f"detscope show {shlex.quote(run)} --json", ""


def _with_operators(rerun: str) -> str:
    """Options of `run` stand before the script."""
    script = rerun.removeprefix("detscope run ")
    return f"{rerun} --level ops" if script == rerun else f"detscope run --level ops {script}"


def _from_here(path: str) -> str:
    """A path as short as it can be typed from the current folder."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path

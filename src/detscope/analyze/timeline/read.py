"""A run's steps to look into, from its tables."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from detscope.analyze.device.figures import DEVICE_COLUMNS, HOST_COLUMNS, DeviceLines, find_lines
from detscope.analyze.step.modules import ModuleFigures
from detscope.analyze.timeline.device import device_window, read_device_lanes
from detscope.analyze.timeline.figures import (
    MOST_SPANS,
    DrawnStep,
    RunTimeline,
    SpanNames,
    TimelineName,
    WaitArrow,
    read_told,
)
from detscope.analyze.timeline.host import (
    read_collectives,
    read_event_lanes,
    read_host_lanes,
    read_loader_lanes,
)
from detscope.analyze.timeline.lines import read_lines
from detscope.analyze.timeline.memory import read_memory_curve, tell_no_memory
from detscope.analyze.timeline.steps import ChosenStep, choose_steps
from detscope.runs.reader import Run

_NODES = ("module", "method", "function", "region", "stretch", "part")


def read_timeline(run: Run, modules: Mapping[str, ModuleFigures] | None = None) -> RunTimeline | None:
    """Lanes of the chosen steps; `modules`: what the table of modules says of a path. None: nothing."""
    timeline = run.table("timeline")
    hosts, devices = run.table("host_events", HOST_COLUMNS), run.table("device_events", DEVICE_COLUMNS)
    choice = choose_steps(run, timeline, (hosts, devices))
    if not choice.steps:
        return None
    lines = find_lines(devices, hosts, run.table("steps"))
    # operators and kernels make the number: of our own recordings one step has them, of others' all
    known = SpanNames(most_spans=MOST_SPANS if timeline.height else MOST_SPANS // len(choice.steps))
    steps = [_draw_step(run, timeline, hosts, lines, chosen, known) for chosen in choice.steps]
    steps = [step for step in steps if any(len(lane) for lane in step.lanes)]
    if not steps:
        return None
    names = _describe_names(run, known, modules or {})
    return RunTimeline(names, list(known.groups), steps, choice.measured, choice.drawn)


def _draw_step(
    run: Run,
    timeline: pl.DataFrame,
    hosts: pl.DataFrame,
    lines: DeviceLines,
    chosen: ChosenStep,
    known: SpanNames,
) -> DrawnStep:
    step, host_window = chosen.step, chosen.window
    window = device_window(lines, step, host_window)
    if lines.lines:  # which tell kernels by stream
        timeline = timeline.filter(pl.col("track") != "kernels")
    lanes = list(read_host_lanes(timeline, step, host_window, known))
    drawn_ns = max((int((lane.starts + lane.lengths).max()) for lane in lanes), default=0)
    if not lanes and hosts.height:
        lanes = list(read_event_lanes(hosts, window, known))
    arrows: list[WaitArrow] = []
    if lines.lines:
        on_device, arrows = read_device_lanes(lines, window, known, len(lanes))
        lanes += on_device
    lanes += [*read_collectives(run, window, known), *read_loader_lanes(run, window, known)]
    memory = read_memory_curve(run, step, host_window)
    return DrawnStep(
        step,
        chosen.title,
        chosen.remark,
        host_window.end_ns - host_window.start_ns,
        max(window.end_ns - window.start_ns, drawn_ns),
        lanes,
        arrows,
        memory,
        "" if memory is not None else tell_no_memory(run),
    )


def _describe_names(run: Run, known: SpanNames, modules: Mapping[str, ModuleFigures]) -> list[TimelineName]:
    """Names with what the other tables know of them: type, stage, shapes, lines, the figures of the table."""
    nodes = {
        row["path"] or row["type"]: row
        for row in run.table("nodes").filter(pl.col("kind").is_in(_NODES)).to_dicts()
    }
    outputs, inputs, lines = _find_outputs(run), _find_operands(run), read_lines(run)
    found = []
    for text, kind, told in known.names:
        about = read_told(told)
        node = nodes.get(text) if kind == "module" else None
        if node is not None:
            about += [(word, str(node[word])) for word in ("type", "stage", "parameters") if node[word]]
            about += lines.tell_module(node["path"], node["type"] or "")
            if node["path"] in outputs:
                about.append(("largest output", outputs[node["path"]]))
            figures = modules.get(node["path"])
            if figures is not None:
                about += [
                    (f"{direction} in the table", f"{ms:.3f} ms")
                    for direction, ms in (("forward", figures.forward_ms), ("backward", figures.backward_ms))
                    if ms
                ]
        elif kind == "stage" and text in nodes:  # a stage that is a module
            about += lines.tell_module(text, nodes[text]["type"] or "")
        elif kind == "operator":
            about += [("shapes", inputs[text])] if text in inputs else []
            about += [("called at", lines.operators[text])] if text in lines.operators else []
        found.append(TimelineName(text, kind, about))
    return found


def _find_outputs(run: Run) -> dict[str, str]:
    """The largest activation that each module made, where memory was recorded."""
    blocks = run.table("memory", ("bytes", "module", "category", "shape", "dtype"))
    made = blocks.filter((pl.col("category") == "activations") & pl.col("shape").is_not_null())
    largest = made.drop_nulls("module").sort("bytes").group_by("module", maintain_order=True).last()
    return {row["module"]: f"{row['shape']} {row['dtype'] or ''}".strip() for row in largest.to_dicts()}


def _find_operands(run: Run) -> dict[str, str]:
    """Shapes of operators: those that took most time, and how many others there are."""
    ops = run.table("ops", ("name", "shapes", "total_ns")).filter(
        pl.col("shapes").is_not_null() & (pl.col("shapes") != "")
    )
    by_shape = ops.group_by("name", "shapes").agg(pl.col("total_ns").sum()).sort("total_ns", descending=True)
    named = by_shape.group_by("name", maintain_order=True).agg(pl.col("shapes").first(), n=pl.len())
    return {
        name: f"{shapes}, and {n - 1} others" if n > 1 else shapes for name, shapes, n in named.iter_rows()
    }

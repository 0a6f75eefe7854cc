"""The tables of a run for a terminal; each function takes the summary and gives a table, or None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from detscope.report.figures import (
    cell,
    interval,
    is_number,
    mapping,
    number,
    percent,
    plain,
    rows,
    with_unit,
)

Summary = Mapping[str, Any]

BAR_CELLS = 20
TOP = 10
TELEMETRY_ROWS = 16
# An ancestor whose own code takes less than this share of its time only repeats its children.
USEFUL_SELF_SHARE = 0.05


def figure_table(title: str, names: Sequence[str], figures: Sequence[str]) -> Table:
    """An empty table: columns of names to the left, figures to the right."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name in names:
        table.add_column(name, overflow="fold")
    for figure in figures:
        table.add_column(figure, justify="right", no_wrap=True)
    return table


def phases_table(summary: Summary, ascii_only: bool = False) -> Table | None:
    """Phases with bars laid end to end, so that one sees them add up to the step."""
    phases = rows(summary, "phases") or _phases_without_detail(summary)
    if not phases:
        return None
    table = figure_table("Phases of a step", ["phase"], ["ms", "share"])
    table.add_column("adds up to the step", no_wrap=True)
    table.add_column("median [95 % interval]", justify="right", no_wrap=True)
    covered = 0.0
    for phase in phases:
        share = phase.get("share")
        begin = covered
        if is_number(share):
            covered += max(0.0, float(phase["share"]))
        table.add_row(
            cell(phase.get("name")),
            number(phase.get("ms")),
            percent(share),
            laid_out_bar(begin, covered, ascii_only),
            _spread(phase),
        )
    step = mapping(summary, "step_ms")
    if is_number(step.get("p50")):  # phases are shares of the median step, so this is their sum
        table.add_row("step", number(step["p50"]), "", "", _spread(step), style="bold")
    return table


def _phases_without_detail(summary: Summary) -> list[Mapping[str, Any]]:
    return [{"name": name, "ms": ms} for name, ms in mapping(summary, "phases_ms").items()]


def laid_out_bar(begin: float, end: float, ascii_only: bool) -> Text:
    """A bar from one share of the whole to another."""
    first, last = (min(BAR_CELLS, round(BAR_CELLS * edge)) for edge in (begin, end))
    return Text(" " * first + ("#" if ascii_only else "█") * (last - first), style="cyan")


def _spread(row: Mapping[str, Any]) -> str:
    return f"{number(row.get('p50'))} {interval(row.get('ci95'))}" if is_number(row.get("p50")) else ""


def stages_table(summary: Summary) -> Table | None:
    """The detector's stages as a tree, forward and backward."""
    stages = rows(summary, "stages")
    if stages:
        table = figure_table("Stages, ms per step", ["stage"], ["forward", "backward", "total", "share"])
        for stage in stages:
            table.add_row(indented(stage), *_directions(stage), percent(stage.get("share")))
        return table
    totals = mapping(summary, "stages_ms")
    if not totals:
        return None
    table = figure_table("Stages, ms per step", ["stage"], ["total"])
    for name, ms in totals.items():
        table.add_row(cell(name), number(ms))
    return table


def indented(stage: Mapping[str, Any]) -> Text:
    """A stage's name as deep as it lies in the tree."""
    depth = stage.get("depth")
    name = plain(stage.get("name"))
    if isinstance(depth, int) and not isinstance(depth, bool) and 0 < depth < 20:
        return Text("  " * depth + name.rpartition(".")[2])
    return Text(name)


def _directions(row: Mapping[str, Any]) -> list[str]:
    return [number(row.get(f"{which}_ms")) for which in ("forward", "backward", "total")]


def modules_table(summary: Summary) -> Table | None:
    """The most expensive modules that have work of their own."""
    modules = top_modules(rows(summary, "modules"))
    if not modules:
        return None
    title = f"Most expensive modules, ms per step (of {len(rows(summary, 'modules'))})"
    table = figure_table(title, ["module", "type"], ["forward", "backward", "total", "self", "share"])
    for module in modules:
        own = f"{number(module.get('self_forward_ms'))} + {number(module.get('self_backward_ms'))}"
        kind = module.get("type") or module.get("kind")
        table.add_row(
            cell(module.get("path") or "(root)"),
            cell(kind),
            *_directions(module),
            own,
            percent(module.get("share")),
        )
    return table


def top_modules(modules: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The ten with the largest total, without containers that only pass time on to their children."""
    ranked = sorted(
        (module for module in modules if is_number(module.get("total_ms"))),
        key=lambda module: -module["total_ms"],
    )
    return [module for module in ranked if not _only_passes_on(module)][:TOP]


def _only_passes_on(module: Mapping[str, Any]) -> bool:
    own = [module.get("self_forward_ms"), module.get("self_backward_ms")]
    known = [float(value) for value in own if isinstance(value, int | float) and is_number(value)]
    return bool(known) and sum(known) < USEFUL_SELF_SHARE * float(module["total_ms"])


def operators_table(summary: Summary) -> Table | None:
    """The most expensive operators, with the module and direction they belong to."""
    operators = [row for row in rows(summary, "operators") if is_number(row.get("self_ms"))]
    if not operators:
        return None
    table = figure_table(
        "Most expensive operators", ["operator", "direction", "module"], ["calls", "self ms", "share"]
    )
    for row in sorted(operators, key=lambda row: -row["self_ms"])[:TOP]:
        table.add_row(
            cell(row.get("name")),
            cell(row.get("direction")),
            cell(row.get("module") or "(none)"),
            number(row.get("count"), 0),
            number(row.get("self_ms")),
            percent(row.get("share")),
        )
    return table


def loader_table(summary: Summary) -> Table | None:
    """What each loader worker did, ms per batch."""
    workers = rows(mapping(summary, "loader"), "workers")
    if not workers:
        return None
    steps = ("load", "decode", "transform", "collate", "wait")
    table = figure_table("Loader workers, ms per batch", ["worker"], ["batches", *steps, "busy"])
    for worker in workers:
        table.add_row(
            cell(worker.get("worker")),
            number(worker.get("batches"), 0),
            *(number(worker.get(f"{step}_ms")) for step in steps),
            percent(worker.get("busy_share")),
        )
    return table


def telemetry_table(summary: Summary) -> Table | None:
    """What the machine did meanwhile; cores and workers one by one are left to the JSON."""
    readings = [
        reading
        for reading in rows(summary, "telemetry")
        if not plain(reading.get("source")).startswith(("core:", "worker:"))
    ]
    if not readings:
        return None
    table = figure_table("Machine", ["source", "metric"], ["mean", "max"])
    for reading in readings[:TELEMETRY_ROWS]:
        unit = plain(reading.get("unit") or "")
        table.add_row(
            cell(reading.get("source")),
            cell(
                plain(reading.get("metric")).removesuffix("_bytes").removesuffix("_percent").replace("_", " ")
            ),
            with_unit(reading.get("mean"), unit),
            with_unit(reading.get("max"), unit),
        )
    return table

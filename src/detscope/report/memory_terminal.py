"""The memory of a run on a terminal: the peak, what it is made of, levels, advice, what did not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detscope.report.figures import (
    CANNOT_TELL,
    cell,
    is_number,
    mapping,
    number,
    percent,
    plain,
    rows,
    with_unit,
)
from detscope.report.memory_colours import CATEGORY_COLOURS, category_name
from detscope.report.terminal_tables import BAR_CELLS, figure_table

Summary = Mapping[str, Any]
Line = tuple[str, str, str]
SHOWN = 10
SHOWN_WORKERS = 8


def render_memory(summary: Summary, console: Console) -> None:
    """Print the memory section; nothing where no blocks were recorded."""
    memory = mapping(summary, "memory")
    if not isinstance(memory.get("categories"), Mapping):
        return
    console.print()
    _lines(console, _peak_lines(memory))
    for table in (_categories(memory, console.options.ascii_only), _modules(memory), _tensors(memory)):
        if table is not None:
            console.print()
            console.print(table)
    console.print()
    _lines(console, _level_lines(memory))
    if (advice := _advice(memory)) is not None:
        console.print()
        console.print(advice)
    if tried := _tried(memory):
        console.print()
        console.print(tried)
    if mapping(memory, "oom"):
        console.print()
        _lines(console, _oom_lines(mapping(memory, "oom")))


def _lines(console: Console, lines: Iterator[Line]) -> None:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=11, no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, text, style in lines:
        grid.add_row(label, Text(text, style=style))
    console.print(grid)


def _peak_lines(memory: Summary) -> Iterator[Line]:
    at = mapping(memory, "at")
    place = [plain(at[key]) for key in ("phase", "module", "operator") if at.get(key)]
    where = f" in {', '.join(place)}" if place else ""
    when = f", step {at['step']}" if is_number(at.get("step")) else ""
    into = f", {with_unit(at['ms_into_step'], 'ms')} into it" if is_number(at.get("ms_into_step")) else ""
    certain = "" if memory.get("peak_is", "measured") == "measured" else "at least "
    peak = certain + with_unit(memory.get("peak_bytes"), "bytes")
    yield "memory", f"peak {peak}{where}{when}{into}", "bold"
    steps = mapping(memory, "steps")
    if is_number(steps.get("p50_bytes")) and steps.get("n", 0) > 1:
        low, high = (with_unit(steps.get(f"{end}_bytes"), "bytes") for end in ("lowest", "highest"))
        yield (
            "",
            f"median of {number(steps['n'], 0)} steps' peaks {with_unit(steps['p50_bytes'], 'bytes')}, "
            f"{low} to {high}",
            "",
        )
    slope = mapping(memory, "slope")
    if is_number(slope.get("bytes_per_image")):
        fixed = with_unit(slope.get("fixed_bytes"), "bytes")
        yield "", f"{with_unit(slope['bytes_per_image'], 'bytes')} per image, {fixed} without any", ""


def _categories(memory: Summary, ascii_only: bool) -> Table | None:
    categories = mapping(memory, "categories")
    peak = memory.get("peak_bytes")
    if not categories or not is_number(peak) or not peak:
        return None
    table = figure_table("What the peak is made of", ["category"], ["size", "share"])
    table.add_column("", no_wrap=True)
    for name, size in sorted(categories.items(), key=lambda item: -item[1]):
        if size or name == "unknown":
            share = size / peak
            red, green, blue = CATEGORY_COLOURS.get(name, CATEGORY_COLOURS["unknown"])
            bar = ("#" if ascii_only else "█") * round(BAR_CELLS * share)
            table.add_row(
                cell(category_name(name)),
                with_unit(size, "bytes"),
                percent(share),
                Text(bar, style=f"rgb({red},{green},{blue})"),
            )
    return table


def _modules(memory: Summary) -> Table | None:
    modules = rows(memory, "modules")
    if not modules:
        return None
    table = figure_table(
        f"Modules that hold most at the peak (of {len(modules)})", ["module", "of which"], ["size", "share"]
    )
    for module in modules[:SHOWN]:
        parts = sorted(mapping(module, "categories").items(), key=lambda item: -item[1])
        text = ", ".join(
            f"{category_name(plain(name))} {with_unit(size, 'bytes')}" for name, size in parts[:3]
        )
        table.add_row(
            cell(module.get("path")),
            cell(text),
            with_unit(module.get("bytes"), "bytes"),
            percent(module.get("share")),
        )
    return table


def _tensors(memory: Summary) -> Table | None:
    largest = rows(memory, "largest")
    if not largest:
        return None
    table = figure_table("Largest tensors at the peak", ["tensor", "module", "made by", "category"], ["size"])
    for row in largest[:SHOWN]:
        shape = " ".join(plain(row[key]) for key in ("shape", "dtype") if row.get(key))
        made_by = row.get("operator") or row.get("stack") or row.get("name")
        category = category_name(plain(row.get("category") or "unknown"))
        table.add_row(
            cell(shape or None),
            cell(row.get("module")),
            cell(made_by),
            cell(category),
            with_unit(row.get("bytes"), "bytes"),
        )
    return table


def _level_lines(memory: Summary) -> Iterator[Line]:
    levels = mapping(memory, "levels")
    yield "allocated", with_unit(levels.get("allocated_bytes"), "bytes") + " at most", ""
    yield "reserved", with_unit(levels.get("reserved_bytes"), "bytes"), ""
    gap = levels.get("fragmentation")
    if isinstance(gap, Mapping):
        free = ", ".join(with_unit(size, "bytes") for size in gap.get("largest_free_bytes") or ())
        tail = f"; largest free blocks {free}" if free else ""
        yield "", f"{with_unit(gap.get('bytes'), 'bytes')} reserved and not allocated{tail}", ""
    growth = levels.get("process_growth_bytes")
    rose = f", {with_unit(growth, 'bytes')} above its begin" if is_number(growth) else ""
    yield "process", with_unit(levels.get("process_bytes"), "bytes") + rose, ""
    workers = rows(levels, "workers")
    if workers:
        sizes = ", ".join(with_unit(worker.get("bytes"), "bytes") for worker in workers[:SHOWN_WORKERS])
        more = f" and {len(workers) - SHOWN_WORKERS} more" if len(workers) > SHOWN_WORKERS else ""
        yield "workers", sizes + more, ""


def _advice(memory: Summary) -> Table | None:
    advice = [row for row in rows(memory, "advice") if row.get("worth", True)]
    if not advice:
        return None
    table = figure_table("What would lower the peak", [], ["saves", "peak"])
    for name in ("advice", "costs", "how"):
        table.add_column(name, overflow="fold")
    for row in advice:
        bound = "at most " if row.get("at_most") else ""
        table.add_row(
            bound + with_unit(row.get("saves_bytes"), "bytes"),
            with_unit(row.get("peak_bytes"), "bytes"),
            cell(row.get("advice")),
            cell(row.get("costs")),
            cell(row.get("how"), "cyan"),
        )
    return table


def _tried(memory: Summary) -> Table | None:
    tried = rows(memory, "tried")
    if not tried:
        return None
    table = figure_table("Savings tried", [], ["variant", "predicted", "measured", "off by", "peak", "step"])
    table.columns[0].justify = "left"
    table.add_column("run", overflow="fold")
    for row in tried:
        table.add_row(
            cell(row.get("variant")),
            with_unit(row.get("predicted_saving_bytes"), "bytes"),
            with_unit(row.get("measured_saving_bytes"), "bytes"),
            percent(row.get("error_share")),
            with_unit(row.get("peak_bytes"), "bytes"),
            f"{number(row.get('step_ratio'), 2)} x" if is_number(row.get("step_ratio")) else CANNOT_TELL,
            cell(Path(str(row["run"])).name if row.get("run") else row.get("why")),
        )
    return table


def _oom_lines(oom: Summary) -> Iterator[Line]:
    place = [plain(oom[key]) for key in ("phase", "module") if oom.get(key)]
    where = f" in {', '.join(place)}" if place else ""
    request = (
        with_unit(oom.get("request_bytes"), "bytes") if is_number(oom.get("request_bytes")) else "a request"
    )
    yield (
        "no memory",
        f"{request} more did not fit{where}; {with_unit(oom.get('limit_bytes'), 'bytes')} did",
        "bold red",
    )
    if is_number(oom.get("bytes_per_image")):
        image, fixed = (with_unit(oom.get(key), "bytes") for key in ("bytes_per_image", "fixed_bytes"))
        yield "", f"an image takes about {image} beside {fixed} ({plain(oom.get('basis'))})", ""
    elif oom.get("basis"):
        yield "", plain(oom["basis"]), ""
    if is_number(oom.get("suggested_batch")):
        command = f": {plain(oom['command'])}" if oom.get("command") else ""
        yield "try", f"batch {number(oom['suggested_batch'], 0)}{command}", "bold"
    elif oom.get("why"):
        yield "try", plain(oom["why"]), ""

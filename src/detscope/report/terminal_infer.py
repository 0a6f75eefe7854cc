"""An inference run on a terminal: stages from the file to the boxes, cost against content, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from detscope.report.figures import (
    CANNOT_TELL,
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
from detscope.report.terminal_tables import figure_table, indented, laid_out_bar, top_modules

Summary = Mapping[str, Any]
Line = tuple[str, str, str]

SHOWN_OUTLIERS = 5
SHOWN_SKIPPED = 20
SHOWN_SLOPES = 8
LEAST_R2 = 0.1  # a line that explains less is not worth a row


def latency_lines(summary: Summary) -> Iterator[Line]:
    """The headline: latency, speed, first image, outliers by name."""
    latency = mapping(summary, "latency_ms")
    batch = summary.get("batch_size")
    what = f"batch of {number(batch, 0)}" if is_number(batch) and batch != 1 else "image"
    if is_number(latency.get("p50")):
        text = f"median {with_unit(latency['p50'], 'ms')} per {what}, 95 % interval"
        yield "latency", f"{text} {interval(latency.get('ci95'))}, n {number(latency.get('n'), 0)}", "bold"
        yield "", f"p95 {with_unit(latency.get('p95'), 'ms')}, p99 {with_unit(latency.get('p99'), 'ms')}", ""
    else:
        yield "latency", CANNOT_TELL, "bold"
    speed = summary.get("images_per_s")
    yield "speed", with_unit(speed, "images/s") if speed is not None else CANNOT_TELL, ""
    yield "images", f"{number(summary.get('images'), 0)} measured, {_passes(summary)}", ""
    first = summary.get("first_image_ms")
    yield "first", with_unit(first, "ms") if is_number(first) else CANNOT_TELL, ""
    stability = mapping(summary, "stability")
    if stability.get("verdict"):
        reason = f": {plain(stability['reason'])}" if stability.get("reason") else ""
        style = "" if stability["verdict"] == "stable" else "yellow"
        yield "steadiness", plain(stability["verdict"]) + reason, style
    yield from _outlier_lines(summary)


def _passes(summary: Summary) -> str:
    repeat = summary.get("repeat")
    return f"{number(repeat, 0)} times each" if is_number(repeat) and repeat != 1 else "once each"


def _outlier_lines(summary: Summary) -> Iterator[Line]:
    outliers = rows(summary, "outliers")
    for index, outlier in enumerate(outliers[:SHOWN_OUTLIERS]):
        special = outlier.get("special")
        found = [plain(text) for text in special] if isinstance(special, list | tuple) else []
        size = f" ({plain(outlier['size'])})" if outlier.get("size") else ""
        text = f"{plain(outlier.get('file'))}{size}: {with_unit(outlier.get('ms'), 'ms')}"
        why = [*found, *([plain(outlier["why"])] if outlier.get("why") else [])]
        yield "outliers" if index == 0 else "", f"{text}: {'; '.join(why)}" if why else text, ""
    if len(outliers) > SHOWN_OUTLIERS:
        yield "", f"and {len(outliers) - SHOWN_OUTLIERS} more", ""


def skipped_lines(summary: Summary) -> Iterator[Line]:
    """Images that could not be measured, each with its reason."""
    skipped = rows(summary, "skipped")
    for item in skipped[:SHOWN_SKIPPED]:
        yield "skipped", f"{plain(item.get('file'))}: {plain(item.get('reason'))}", "yellow"
    if len(skipped) > SHOWN_SKIPPED:
        yield "", f"and {len(skipped) - SHOWN_SKIPPED} more", "yellow"


def detection_lines(summary: Summary) -> Iterator[Line]:
    """How much was found."""
    found = mapping(summary, "detections")
    if is_number(found.get("per_image")):
        above = number(found.get("above_score_per_image"))
        score = f"above {number(summary.get('score'))}"
        yield "found", f"{number(found['per_image'])} detections per image, {above} of them {score}", ""


def stages_table(summary: Summary, ascii_only: bool = False) -> Table | None:
    """Stages from decode to other, with bars laid end to end."""
    stages = rows(summary, "stages")
    if not stages:
        return None
    table = figure_table("Stages of an image, ms", ["stage"], ["ms", "share"])
    table.add_column("adds up to the latency", no_wrap=True)
    table.add_column("median [95 % interval]", justify="right", no_wrap=True)
    with_p95 = any(is_number(stage.get("p95")) for stage in stages)
    if with_p95:
        table.add_column("p95", justify="right", no_wrap=True)
    covered = 0.0
    for stage in stages:
        bar = Text("")
        if stage.get("depth") == 0 and is_number(stage.get("share")):
            begin, covered = covered, covered + max(0.0, float(stage["share"]))
            bar = laid_out_bar(begin, covered, ascii_only)
        spread = f"{number(stage.get('p50'))} {interval(stage.get('ci95'))}"
        figures = (number(stage.get("ms")), percent(stage.get("share")))
        p95 = [number(stage.get("p95"))] if with_p95 else []
        table.add_row(indented(stage), *figures, bar, spread, *p95)
    latency = mapping(summary, "latency_ms")
    if is_number(latency.get("p50")):
        table.add_row("latency", number(latency["p50"]), "", "", interval(latency.get("ci95")), style="bold")
    return table


def modules_table(summary: Summary) -> Table | None:
    """The most expensive modules that have work of their own."""
    modules = top_modules(rows(summary, "modules"))
    if not modules:
        return None
    title = f"Most expensive modules, ms per pass (of {len(rows(summary, 'modules'))})"
    table = figure_table(title, ["module", "type"], ["calls", "total", "self", "share"])
    for module in modules:
        table.add_row(
            cell(module.get("path") or "(root)"),
            cell(module.get("type") or module.get("kind")),
            number(module.get("calls"), 0),
            number(module.get("total_ms")),
            number(module.get("self_forward_ms")),
            percent(module.get("share")),
        )
    return table


def content_table(summary: Summary) -> Table | None:
    """The lines that explain most: how stages grow with boxes, proposals and pixels."""
    found = []
    for stage, measures in mapping(summary, "cost_against_content").items():
        for line in measures.values() if isinstance(measures, Mapping) else ():
            if isinstance(line, Mapping) and is_number(line.get("slope")) and is_number(line.get("r2")):
                found.append((stage, line))
    found = [(stage, line) for stage, line in found if line["r2"] >= LEAST_R2]
    if not found:
        return None
    table = figure_table(
        "Cost against content", ["stage", "grows by"], ["slope", "95 % interval", "explains", "n"]
    )
    for stage, line in sorted(found, key=lambda item: -item[1]["r2"])[:SHOWN_SLOPES]:
        table.add_row(
            cell(stage),
            cell(line.get("unit")),
            number(line["slope"]),
            interval(line.get("ci95")),
            percent(line["r2"]),
            number(line.get("n"), 0),
        )
    return table


def memory_lines(summary: Summary) -> Iterator[Line]:
    """The peak of a pass and where it is reached; a whole account of blocks has a section of its own."""
    memory = mapping(summary, "memory")
    if memory.get("categories"):
        return
    if is_number(memory.get("peak_bytes")):
        where = mapping(memory, "peak_at").get("module")
        place = f", reached in {plain(where)}" if where else ""
        yield "memory", f"peak {with_unit(memory['peak_bytes'], 'bytes')} in a pass{place}", ""
    else:
        why = f": {plain(memory['why'])}" if memory.get("why") else ""
        yield "memory", CANNOT_TELL + why, ""


def memory_table(summary: Summary) -> Table | None:
    """The largest allocations of a pass."""
    memory = mapping(summary, "memory")
    largest = rows(memory, "largest")
    if not largest or memory.get("categories"):
        return None
    table = figure_table("Largest allocations of a pass", ["operator", "module", "stage"], ["size"])
    for item in largest:
        size = with_unit(item.get("bytes"), "bytes")
        table.add_row(cell(item.get("operator")), cell(item.get("module")), cell(item.get("stage")), size)
    return table

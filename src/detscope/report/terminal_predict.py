"""A prediction in the terminal: a row per batch size, what follows from them, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detscope.report.figures import CANNOT_TELL, cell, is_number, number, percent, plain, with_unit
from detscope.report.terminal_tables import figure_table

if TYPE_CHECKING:
    from rich.console import Console

_STAGES_SHOWN = 8


def render(found: Mapping[str, Any], console: Console) -> None:
    """Print all of a prediction."""
    traced = "stage" in found
    figures = ["latency", "process", "reserved", "allocated", *(["on this CPU"] if traced else []), "fits"]
    table = figure_table(f"{plain(found['network'])}, predicted", ["batch"], figures)
    reasons: dict[str, None] = {}
    for row in found["rows"]:
        cells = [
            _with_interval(row, "latency_ms", "ms"),
            _with_interval(row, "process_bytes", "bytes"),
            with_unit(row["reserved_bytes"], "bytes"),
            with_unit(row["allocated_bytes"], "bytes"),
        ]
        cells += [with_unit(row["cpu_allocated_bytes"], "bytes")] if traced else []
        word, _, why = row["fits"].partition(": ")
        reasons |= {f"{word} whether it fits: {why}": None} if why else {}
        table.add_row(f"{row['batch']}{' *' if row['extrapolated'] else ''}", *cells, cell(word))
    console.print(table)
    for line in reasons:
        _say(console, line)
    if any(row["extrapolated"] for row in found["rows"]):
        _say(console, "* extrapolated: far from everything that was measured")
    _say(console, f"largest batch that fits: {found['largest_batch_that_fits'] or CANNOT_TELL}")
    _say(console, f"best batch for throughput: {found['best_batch_for_throughput'] or CANNOT_TELL}")
    for line in (*found["notes"], *(f"{CANNOT_TELL} {what}" for what in found["cannot_tell"])):
        _say(console, line)
    if traced:
        _render_parts(found, console)
    for line in found["rows"][0]["assumed"]:
        _say(console, f"assumed: {line}")


def _render_parts(found: Mapping[str, Any], console: Console) -> None:
    last = found["rows"][-1]
    parts = {name: size for name, size in last["cpu_categories"].items() if size}
    words = ", ".join(f"{name} {with_unit(size, 'bytes')}" for name, size in parts.items())
    _say(console, f"peak on this CPU at batch {last['batch']}: {words}")
    largest = max(row["batch"] for row in found["rows"])
    stages = sorted(found["memory_by_stage"].items(), key=lambda item: -item[1])[:_STAGES_SHOWN]
    words = ", ".join(f"{plain(name)} {with_unit(size, 'bytes')}" for name, size in stages if size)
    _say(
        console,
        f"{'activations' if found['stage'] == 'training' else 'tensors made'} at batch {largest}: {words}",
    )
    if found["latency_by_stage"]:
        shares = sorted(found["latency_by_stage"].items(), key=lambda item: -item[1])[:_STAGES_SHOWN]
        words = ", ".join(f"{plain(name)} {percent(share)}" for name, share in shares)
        _say(console, f"time at batch {largest}, by the physical model: {words}")
    for target, groups in found["outside"].items():
        if groups:
            _say(console, f"{target}: beyond everything that was measured: {'; '.join(groups)}")
    for line in found["measured"]:
        _say(console, f"measured: {line}")


def _with_interval(row: Mapping[str, Any], key: str, unit: str) -> str:
    ends = row.get(f"{key}_interval")
    if not is_number(row[key]) or ends is None:
        return CANNOT_TELL
    if unit == "bytes":
        return f"{with_unit(row[key], unit)} [{with_unit(ends[0], unit)}, {with_unit(ends[1], unit)}]"
    return f"{number(row[key])} [{number(ends[0])}, {number(ends[1])}] {unit}"


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)

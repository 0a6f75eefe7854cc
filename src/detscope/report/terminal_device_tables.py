"""Tables of device use for a terminal; each function takes the figures and gives a table, or None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from detscope.report.figures import cell, is_number, mapping, number, percent, plain, rows, with_unit
from detscope.report.terminal_tables import figure_table, laid_out_bar

Device = Mapping[str, Any]

TOP = 10
CAUSES = {
    "data": "waiting for data",
    "synchronisation": "synchronisation",
    "host": "host late with launches",
    "queued": "work queued, not begun",
    "short_gaps": "short gaps between events",
    "unknown": "unknown: no launch record",
}
MOST_NAME_CELLS = 60


def _ms(value: Any) -> str:
    return number(value / 1e6) if is_number(value) else number(value)


def _steps(device: Device) -> int:
    steps = device.get("steps")
    return int(steps) if is_number(steps) and isinstance(steps, int) else 0


def _short(text: Any) -> str:
    words = plain(text)
    return words if len(words) <= MOST_NAME_CELLS else words[: MOST_NAME_CELLS - 3] + "..."


def devices_table(device: Device) -> Table | None:
    """One row per rank and device, where there are several."""
    found = rows(device, "devices")
    if len(found) < 2:
        return None
    table = figure_table(
        "Devices", ["rank", "device"], ["kernels", "kernel ms", "of ms", "with copies", "busy ms", "of ms"]
    )
    for row in found:
        table.add_row(
            cell(row.get("rank")),
            cell(row.get("device")),
            percent(row.get("kernels")),
            _ms(row.get("kernels_ns")),
            _ms(row.get("window_ns")),
            percent(row.get("with_copies")),
            _ms(row.get("with_copies_ns")),
            _ms(row.get("with_copies_window_ns")),
        )
    return table


def idle_table(device: Device, ascii_only: bool) -> Table | None:
    """The window as one bar: busy first, then idle time by cause."""
    idle = mapping(device, "idle")
    window = idle.get("window_ns")
    if not is_number(window) or not window:
        return None
    table = figure_table("Where the device's time went", ["what"], ["ms", "share"])
    table.add_column("adds up to the window", no_wrap=True)
    use = mapping(device, "utilisation")
    covered = 0.0
    parts = [("busy: kernels and copies", use.get("with_copies_ns"), idle.get("busy"))]
    parts += [(f"idle: {words}", idle.get(f"{cause}_ns"), idle.get(cause)) for cause, words in CAUSES.items()]
    for words, duration, share in parts:
        if not is_number(share) or not share:
            continue
        begin, covered = covered, covered + share
        table.add_row(words, _ms(duration), percent(share), laid_out_bar(begin, covered, ascii_only))
    table.add_row("window", _ms(window), "", "", style="bold")
    return table


def blame_table(device: Device) -> Table | None:
    """Who made the device wait, most costly first."""
    found = rows(device, "blame")[:TOP]
    if not found:
        return None
    per_step = _steps(device) > 0
    cost = "idle ms/step" if per_step else "idle ms"
    table = figure_table("Who made the device wait", ["call", "cause", "where"], [cost, "share", "times"])
    for row in found:
        where = [plain(row[key]) for key in ("module", "inside", "line") if row.get(key)]
        where = where or [plain(row["runtime"])] * bool(row.get("runtime"))
        table.add_row(
            cell(_short(row.get("call"))),
            cell(row.get("cause")),
            cell("; ".join(where) if where else "-"),
            number(row.get("idle_ms_per_step" if per_step else "idle_ms")),
            percent(row.get("share")),
            number(row.get("gaps"), 0),
        )
    return table


def kernels_table(device: Device) -> Table | None:
    """The longest kernels."""
    found = rows(device, "kernels")[:TOP]
    if not found:
        return None
    table = figure_table(
        "Kernels" + (", per step" if _steps(device) else ""),
        ["kernel", "operator"],
        ["count", "ms", "share", "occupancy", "tensor"],
    )
    for row in found:
        occupancy = row.get("occupancy")
        table.add_row(
            cell(_short(row.get("short"))),
            cell(row.get("operator") or "-"),
            number(row.get("launches")),
            number(row.get("ms")),
            percent(row.get("share")),
            f"{number(occupancy, 0)} %" if is_number(occupancy) else "-",
            "by name" if row.get("tensor_cores_by_name") else "",
        )
    return table


def copies_table(device: Device) -> Table | None:
    """Copies and sets by direction."""
    found = rows(mapping(device, "copies"), "rows")
    if not found:
        return None
    table = figure_table(
        "Copies and memory sets", ["direction", "host memory"], ["count", "bytes", "ms", "GB/s", "exposed ms"]
    )
    for row in found:
        table.add_row(
            cell(row.get("direction")),
            cell(row.get("memory") or "-"),
            number(row.get("count"), 0),
            with_unit(row.get("bytes"), "bytes"),
            _ms(row.get("total_ns")),
            number(row.get("gb_per_s")),
            _ms(row.get("exposed_ns")),
        )
    return table


def parts_table(device: Device, part: str) -> Table | None:
    """Use by phase, stage or module of the code that launched the work."""
    found = rows(mapping(device, "per"), part)[:TOP]
    if not found:
        return None
    unit = ", ms per step" if _steps(device) else ", ms"
    table = figure_table(
        f"Device use by {part}{unit}", [part], ["kernels", "busy", "idle before", "use", "launches"]
    )
    for row in found:
        table.add_row(
            cell(row.get("name") or "(none)"),
            *(number(row.get(key)) for key in ("kernels_ms", "busy_ms", "idle_ms")),
            percent(row.get("use")),
            number(row.get("launches")),
        )
    return table


def steps_table(device: Device) -> Table | None:
    """The steps, where there are few enough to read."""
    found = rows(device, "per_step")
    if not 1 < len(found) <= TOP:
        return None
    several = len({(row.get("rank"), row.get("device")) for row in found}) > 1
    table = figure_table(
        "Steps",
        ["step", *(["rank", "device"] if several else [])],
        ["ms", "kernels", "with copies", "data wait ms", "sync ms", "host late ms"],
    )
    for row in found:
        idle = mapping(row, "idle_ns")
        table.add_row(
            cell(row.get("step")),
            *([cell(row.get("rank")), cell(row.get("device"))] if several else []),
            _ms(row.get("window_ns")),
            percent(row.get("kernels")),
            percent(row.get("with_copies")),
            *(_ms(idle.get(cause)) for cause in ("data", "synchronisation", "host")),
        )
    return table


def breakdown_table(device: Device) -> Table | None:
    """The average step by role, each only with time that no earlier one took."""
    average = mapping(mapping(device, "breakdown"), "average_us")
    if not average:
        return None
    table = figure_table("Average step by role, as TensorBoard counted it", ["role"], ["us", "share"])
    for role, share in mapping(mapping(device, "breakdown"), "share").items():
        table.add_row(cell(role), number(average.get(role), 0), percent(share))
    table.add_row("step", number(average.get("step"), 0), "", style="bold")
    return table


def cores_table(device: Device) -> Table | None:
    """Pipes, or the counters there are, weighted by cycles."""
    cores = mapping(device, "cores")
    found = mapping(cores, "pipes") or _throughputs(mapping(cores, "counters"))
    if not found:
        return None
    table = figure_table(
        f"Core use, {number(cores.get('kernels'), 0)} kernels, weighted by cycles",
        ["pipe or counter"],
        ["of kernel time", "of the window", "coverage"],
    )
    for name, figure in found.items():
        value = figure.get("value")
        table.add_row(
            cell(name),
            f"{100 * value:.2f} %" if is_number(value) else "cannot tell",
            percent(figure.get("of_window")) if is_number(figure.get("of_window")) else "cannot tell",
            percent(figure.get("coverage")),
        )
    return table


def _throughputs(counters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: figure for name, figure in counters.items() if "hroughput" in name}

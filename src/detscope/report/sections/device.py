"""Device use: how busy, idle by cause, and who made it wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detscope.analyze.drawing import ReportData, thinned
from detscope.report.colours import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, YELLOW, one_bar
from detscope.report.figures import is_number, mapping, percent, plain, rows, with_unit
from detscope.report.model import Absent, Block, Chart, Column, Section, Table
from detscope.report.sections import SectionPart

_IDLE = {
    "data": ORANGE,
    "synchronisation": RED,
    "host": YELLOW,
    "queued": PINK,
    "short_gaps": SKY,
    "unknown": GREY,
}
_SHOWN_TELEMETRY = ("cpu_percent", "utilisation", "gpu_utilisation")


def section(data: ReportData) -> Section | Absent:
    """Utilisation with numerator and denominator, idle, blame; on a CPU the cores in its place."""
    device = data.summary.device
    used = mapping(device, "utilisation") if isinstance(device, Mapping) else {}
    if isinstance(device, Mapping) and is_number(used.get("kernels")):
        return _gpu(device, used)
    processor = mapping(data.summary, "processor")
    over_time = _telemetry(data)
    if processor or over_time:
        return _cpu(processor, over_time)
    why = plain(device.get("why") or "") if isinstance(device, Mapping) else ""
    return Absent("Device use", why or "device use needs --level ops on CUDA, or an imported trace")


def _gpu(device: Mapping[str, Any], used: Mapping[str, Any]) -> Section:
    idle = mapping(device, "idle")
    blocks: list[Block] = [_busy_bar(used, idle), _figures(device, used)]
    steps = rows(device, "per_step")
    if steps:
        blocks.append(_per_step(steps))
    blame = rows(device, "blame")[:20]
    if blame:
        keys = ("cause", "call", "module", "line", "idle_ms_per_step", "share", "gaps")
        columns = [Column("cause"), Column("call", "code"), Column("module", "code"), Column("line", "code")]
        columns += [Column("idle ms per step", "ms"), Column("share", "share"), Column("times", "count")]
        body = [["" if row.get(key) is None else row.get(key) for key in keys] for row in blame]
        blocks.append(Table("blame", "Who made the device wait", columns, body))
    kernels = rows(device, "kernels")[:40]
    if kernels:
        columns = [
            Column("kernel", "code"),
            Column("operator", "code"),
            Column("count", "count"),
            Column("total ms", "ms"),
            Column("median ms", "ms"),
        ]
        body = [
            [
                row.get("name"),
                row.get("operator") or "",
                row.get("count"),
                _ms(row.get("total_ns")),
                _ms(row.get("median_ns")),
            ]
            for row in kernels
        ]
        blocks.append(Table("kernels", "Kernels by total time", columns, body, searchable=True))
    copies = rows(mapping(device, "copies"), "rows")
    if copies:
        columns = [
            Column("direction"),
            Column("memory"),
            Column("count", "count"),
            Column("bytes", "bytes"),
            Column("GB/s", "number"),
        ]
        body = [
            [row.get(key) for key in ("direction", "memory", "count", "bytes", "gb_per_s")] for row in copies
        ]
        blocks.append(Table("copies", "Copies and sets", columns, body))
    sentence = mapping(device, "verdict").get("sentence") or ""
    return Section(
        "device",
        "Device use",
        f"Kernels run {percent(used['kernels'])} of the time; {plain(sentence)}",
        plain(mapping(used, "definition").get("kernels") or "") + ". Copies are a figure of their own.",
        blocks,
    )


def _ms(value: Any) -> float | None:
    return value / 1e6 if is_number(value) else None


def _busy_bar(used: Mapping[str, Any], idle: Mapping[str, Any]) -> Chart:
    window = float(used.get("window_ns") or 0) / 1e6
    kernels = float(used.get("kernels_ns") or 0) / 1e6
    parts = [("kernels", kernels, BLUE)]
    causes = [(name, float(idle.get(f"{name}_ns") or 0) / 1e6, colour) for name, colour in _IDLE.items()]
    copies = max(0.0, window - kernels - sum(value for _, value, _ in causes))
    parts.append(("copies alone", copies, GREEN))
    parts += [
        (f"idle: {name.replace('_', ' ')}", value, colour) for name, value, colour in causes if value > 0
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "ms of the window"}},
        "yaxis": {"visible": False},
    }
    return Chart(
        "device-time", "The device's time: kernels, copies, idle by cause", one_bar(parts), layout, 170
    )


def _figures(device: Mapping[str, Any], used: Mapping[str, Any]) -> Table:
    body: list[list[Any]] = []
    definitions = mapping(used, "definition")
    for name in ("kernels", "with_copies", "copies", "compute"):
        body.append(
            [
                name.replace("_", " "),
                used.get(name),
                _ms(used.get(f"{name}_ns")),
                _ms(used.get(f"{name}_window_ns") or used.get("window_ns")),
                definitions.get(name),
            ]
        )
    for name in ("sm_efficiency", "occupancy"):
        part = mapping(device, name)
        body.append(
            [
                f"{name.replace('_', ' ')} (estimated)",
                part.get("value"),
                _ms(part.get("numerator_ns")),
                _ms(part.get("denominator_ns")),
                part.get("why") or part.get("definition"),
            ]
        )
    idle = mapping(device, "idle")
    for name in _IDLE:
        body.append(
            [
                f"idle: {name.replace('_', ' ')}",
                idle.get(name),
                _ms(idle.get(f"{name}_ns")),
                _ms(idle.get("window_ns")),
                mapping(idle, "definition").get(name),
            ]
        )
    columns = [
        Column("figure"),
        Column("share", "share"),
        Column("numerator ms", "ms"),
        Column("denominator ms", "ms"),
        Column("definition", "sentence"),
    ]
    return Table("device-figures", "Numerators and denominators", columns, body)


def _per_step(steps: list[Mapping[str, Any]]) -> Chart:
    x = [row.get("step") or index for index, row in enumerate(steps)]
    traces = []
    for name, colour in (("kernels", BLUE), ("with_copies", GREEN)):
        numbers, values = thinned([float(n) for n in x], [100 * float(row.get(name) or 0.0) for row in steps])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name.replace("_", " "),
                "x": numbers,
                "y": values,
                "line": {"color": colour},
            }
        )
    layout = {
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"title": {"text": "% of the step"}, "range": [0, 105]},
    }
    return Chart("device-steps", "Device use step by step", traces, layout)


def _telemetry(data: ReportData) -> list[dict[str, Any]]:
    """Utilisation over time as sampled: one line per source."""
    table = data.run.table("telemetry")
    if not table.height:
        return []
    start = int(table["time_ns"].min() or 0)  # type: ignore[arg-type]
    traces = []
    for (source, metric), part in table.group_by("source", "metric", maintain_order=True):
        if metric in _SHOWN_TELEMETRY and not str(source).startswith("core:"):
            x = [(t - start) / 1e9 for t in part["time_ns"].to_list()]
            numbers, values = thinned(x, part["value"].to_list(), 400)
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"{source} {metric}",
                    "x": [round(n, 2) for n in numbers],
                    "y": values,
                }
            )
    return traces


def _cpu(processor: Mapping[str, Any], traces: list[dict[str, Any]]) -> Section:
    blocks: list[Block] = []
    if traces:
        layout = {
            "xaxis": {"title": {"text": "s"}},
            "yaxis": {"title": {"text": "% (100 = one core)"}, "rangemode": "tozero"},
        }
        blocks.append(Chart("cpu-use", "Processor use over time", traces, layout))
    body = [[name, value] for name, value in processor.items() if is_number(value) or isinstance(value, str)]
    share = next(
        (processor[key] for key in ("share", "utilisation", "value") if is_number(processor.get(key))), None
    )
    if body:
        blocks.append(
            Table(
                "processor",
                "Cores in the place of a device",
                [Column("figure"), Column("value", "number")],
                body,
            )
        )
    cores = processor.get("cores")
    title = "There was no GPU: cores are shown in its place"
    if share is not None:
        many = with_unit(cores, "cores") if is_number(cores) else "the cores"
        title = f"The loop's threads use {percent(share)} of {many}"
    return Section("device", "Device use", title, plain(processor.get("definition") or ""), blocks)


PART = SectionPart("device", 100, section)

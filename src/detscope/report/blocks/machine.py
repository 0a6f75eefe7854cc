"""The machine around a run over time: cores in cores, a GPU's share on an axis of its own."""

from __future__ import annotations

import polars as pl

from detscope.analyze.drawing import ReportData, thinned
from detscope.report.colours import BLUE, GREEN, GREY, ORANGE, PINK, RED
from detscope.report.model import Axis, Chart, Series

_SHARES = ("utilisation", "gpu_utilisation")  # of a device, in per cent of its time
_SHARE_COLOURS = (RED, ORANGE, PINK)
MOST_SAMPLES = 400


def telemetry_chart(data: ReportData) -> Chart | None:
    """Cores that this process, its workers and the whole machine kept busy; one meaning per axis."""
    table = data.run.table("telemetry")
    if not table.height:
        return None
    start = int(table["time_ns"].min() or 0)  # type: ignore[arg-type]
    used = table.filter(pl.col("metric") == "cpu_percent")
    cores = used.filter(pl.col("source").str.starts_with("core:"))["source"].n_unique()
    # one busy core of a process is 100, of the system 100 is all of them
    parts = (
        ("this process", pl.col("source") == "process", 0.01, BLUE),
        ("its workers", pl.col("source").str.starts_with("worker:"), 0.01, GREEN),
        ("the whole machine", pl.col("source") == "system", cores * 0.01, GREY),
    )
    lines = [
        line
        for name, chosen, scale, colour in parts
        if scale and (line := _draw_line(used.filter(chosen), name, scale, colour, start)) is not None
    ]
    shares = table.filter(pl.col("metric").is_in(_SHARES))
    for (source,), part in shares.group_by("source", maintain_order=True):
        colour = _SHARE_COLOURS[len(lines) % len(_SHARE_COLOURS)]
        line = _draw_line(part, f"{source} busy", 1.0, colour, start, on_right=True)
        lines += [line] if line is not None else []
    if not lines:
        return None
    right = Axis("% of the device's time", lowest=0, highest=102) if shares.height else None
    axes = (
        Axis("seconds from the first sample"),
        Axis("cores busy", lowest=0, highest=float(cores) if cores else None),
    )
    return Chart("cpu-use", "Cores busy over time", lines, *axes, right)


def _draw_line(
    part: pl.DataFrame, name: str, scale: float, colour: str, start_ns: int, on_right: bool = False
) -> Series | None:
    """Samples of one time are summed: workers are told together."""
    summed = part.group_by("time_ns").agg(pl.col("value").sum()).sort("time_ns")
    if not summed.height:
        return None
    at = [round((time_ns - start_ns) / 1e9, 2) for time_ns in summed["time_ns"].to_list()]
    numbers, values = thinned(
        at, [round(value * scale, 3) for value in summed["value"].to_list()], MOST_SAMPLES
    )
    return Series(name, numbers, values, colour, on_right=on_right)

"""Device use of a run: the key `device` of its summary, for runs of every verb."""

from __future__ import annotations

from typing import Any

import polars as pl

from detscope.analyze.device.figures import device_figures
from detscope.analyze.device.processor import processor_figures, thread_rows
from detscope.analyze.stats import percent
from detscope.runs.reader import Run
from detscope.runs.schema import TABLES

# what no figure needs is not read
DEVICE_COLUMNS = tuple(name for name in TABLES["device_events"] if name not in ("launch_thread", "step"))
HOST_COLUMNS = tuple(name for name in TABLES["host_events"] if name != "sequence")
NO_DEVICE = "no device events were recorded"


def add_device(summary: dict[str, Any], run: Run) -> None:
    """Put device use into the summary. `device` was the device's name; with figures it is kept inside."""
    imported = run.info.get("verb") == "import"
    hosts = run.table("host_events", HOST_COLUMNS)
    _add_figures(summary, run, hosts, imported)
    if processor := processor_figures(run.table("telemetry"), run.table("steps"), run.info):
        summary["processor"] = processor
    if imported:
        summary["sources"] = run.info.get("sources") or []
        _add_imported(summary, hosts)


def _add_figures(summary: dict[str, Any], run: Run, hosts: pl.DataFrame, imported: bool) -> None:
    """A function of its own: the device's events are many, and nothing after this needs them."""
    events, metrics = run.table("device_events", DEVICE_COLUMNS), run.table("kernel_metrics")
    if imported or events.height or metrics.height:
        found = device_figures(events, hosts, metrics, run.table("steps"), _dropped(run.info))
        summary["device"] = {"name": run.info.get("device"), **(found or _no_device())}


def _no_device() -> dict[str, Any]:
    unknown = {"kernels": None, "with_copies": None, "why": NO_DEVICE}
    return {"why": NO_DEVICE, "steps": None, "utilisation": unknown}


def _add_imported(summary: dict[str, Any], hosts: pl.DataFrame) -> None:
    """What a recorded file tells without our own recorder: steps, stages, threads, a verdict."""
    device = summary["device"]
    marks = hosts.filter(pl.col("kind") == "step").height
    summary["steps"] = device.get("steps") or marks or summary["step_ms"]["n"] or None
    if not summary.get("stages"):
        summary["stages_ms"] = _stages(hosts)
    threads = thread_rows(hosts)
    if threads:
        summary["threads"] = threads
    if "verdict" in device:
        summary["verdict"] = device["verdict"]["sentence"]
    elif device.get("cores"):
        summary["verdict"] = _counter_verdict(device["cores"])
    elif memory := (summary.get("memory") or {}):
        summary["verdict"] = _memory_verdict(memory)
        return  # a file about memory is not asked how busy the device was
    elif not summary["step_ms"]["n"]:
        summary["verdict"] = f"cannot tell how the device was used: {device['why']}"
    if device.get("why"):
        summary["cannot_tell"] = [*summary.get("cannot_tell", []), f"device use: {device['why']}"]


def _stages(hosts: pl.DataFrame) -> dict[str, float]:
    stages = hosts.filter(pl.col("kind") == "stage")
    grouped = stages.group_by("name", maintain_order=True).agg(pl.col("wall_ns").sum())
    return {name: wall_ns / 1e6 for name, wall_ns in grouped.iter_rows()}


def _memory_verdict(memory: dict[str, Any]) -> str:
    """The peak in one sentence: at least how much, where the file began late."""
    peak = memory.get("peak_bytes")
    if not peak:
        return "cannot tell the peak of memory from this file"
    size = f"{peak / 1e9:.2f} GB" if peak >= 1e9 else f"{peak / 1e6:.1f} MB"
    if str(memory.get("peak_is", "measured")).startswith("a lower bound"):
        return f"the peak is at least {size}; the true one cannot be known: recording began late"
    categories = memory.get("categories") or {}
    known = {name: value for name, value in categories.items() if name != "unknown" and value}
    if not known:
        return f"the peak of allocated memory is {size}"
    top = max(known, key=lambda name: known[name])
    return f"the peak of allocated memory is {size}, {percent(known[top] / peak)} of it {top}"


def _counter_verdict(cores: dict[str, Any]) -> str:
    """Counters of single kernels say how well kernels use the device, not how busy it is."""
    counters = cores.get("counters", {})
    for name in ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput"):
        if counters.get(name, {}).get("value") is not None:
            return f"kernels reach {percent(counters[name]['value'], 1)} of the device's compute throughput"
    return f"{cores.get('kernels', 0)} kernels with counters; how busy the device was is in another recording"


def _dropped(info: dict[str, Any]) -> dict[str, int]:
    """Counts of what the reader of each file dropped, clipped or could not link."""
    total: dict[str, int] = {}
    sources = info.get("sources")
    for source in sources if isinstance(sources, list) else []:
        counts = source.get("counts") if isinstance(source, dict) else None
        for what, number in (counts if isinstance(counts, dict) else {}).items():
            if isinstance(number, int):
                total[what] = total.get(what, 0) + number
    return total

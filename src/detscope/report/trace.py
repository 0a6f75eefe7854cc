"""One Chrome / Perfetto trace: steps, phases, stages, modules, operators, loader workers, telemetry."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detscope.analyze.columns import highest, lowest
from detscope.runs.atomic import write_atomically
from detscope.runs.reader import Run

TRACKS = ("steps", "phases", "stages", "modules", "operators", "kernels")
WORKER_THREADS_FROM = 100


def write_trace(run: Run) -> Path:
    """Write `trace.json.gz` from the run's tables."""
    path = run.folder / "trace.json.gz"

    def write(temporary: Path) -> None:
        with gzip.open(temporary, "wt", encoding="utf-8", compresslevel=5) as handle:
            handle.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            for index, event in enumerate(trace_events(run)):
                handle.write(("" if index == 0 else ",\n") + json.dumps(event, separators=(",", ":")))
            handle.write("\n]}\n")

    write_atomically(path, write)
    return path


def trace_events(run: Run) -> Iterator[dict[str, Any]]:
    """Events in the trace's format; times in us from the first traced step."""
    timeline = run.table("timeline")
    origin = lowest(timeline["start_ns"])
    last = highest(timeline["start_ns"] + timeline["wall_ns"])
    yield {
        "ph": "M",
        "name": "process_name",
        "pid": 1,
        "tid": 0,
        "args": {"name": f"detscope {run.info.get('verb')}"},
    }
    for index, track in enumerate(TRACKS):
        yield from _thread_name(index + 1, track)
    for row in timeline.iter_rows(named=True):
        name = (
            f"{row['name']} ({row['direction']})"
            if row["direction"] in ("backward", "recompute")
            else row["name"]
        )
        yield _span(
            TRACKS.index(row["track"]) + 1, name, row["start_ns"] - origin, row["wall_ns"], row["track"]
        )
    yield from _workers(run, origin, last)
    yield from _counters(run, origin, last)


def _workers(run: Run, origin: int, last: int) -> Iterator[dict[str, Any]]:
    named: set[int] = set()
    for row in run.table("loader").iter_rows(named=True):
        if row["start_ns"] > last or row["start_ns"] + row["wall_ns"] < origin:
            continue
        thread = WORKER_THREADS_FROM + row["worker"] + 1
        if thread not in named:
            named.add(thread)
            yield from _thread_name(
                thread, "loading in the loop" if row["worker"] < 0 else f"loader worker {row['worker']}"
            )
        name = f"batch of step {row['step']}" if row["region"] == "batch" else row["region"]
        yield _span(thread, name, row["start_ns"] - origin, row["wall_ns"], "loader")


def _counters(run: Run, origin: int, last: int) -> Iterator[dict[str, Any]]:
    for row in run.table("telemetry").iter_rows(named=True):
        if origin <= row["time_ns"] <= last:
            yield {
                "ph": "C",
                "name": f"{row['source']} {row['metric']} [{row['unit']}]",
                "pid": 1,
                "ts": (row["time_ns"] - origin) / 1e3,
                "args": {row["metric"]: row["value"]},
            }


def _thread_name(thread: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": thread, "args": {"sort_index": thread}}


def _span(thread: int, name: str, start_ns: int, wall_ns: int, category: str) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start_ns / 1e3,
        "dur": wall_ns / 1e3,
    }

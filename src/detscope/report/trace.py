"""One Chrome / Perfetto trace: steps, phases, stages, modules, operators, loader workers, telemetry."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from detscope.analyze.columns import highest, lowest
from detscope.runs.atomic import write_bytes
from detscope.runs.reader import Run

TRACKS = ("steps", "phases", "stages", "modules", "operators", "kernels")
WORKER_THREADS_FROM = 100


def write_trace(run: Run) -> Path:
    """Write `trace.json.gz` from the run's tables."""
    path = run.folder / "trace.json.gz"
    text = '{"displayTimeUnit":"ms","traceEvents":[\n' + ",\n".join(trace_lines(run)) + "\n]}\n"
    write_bytes(path, gzip.compress(text.encode(), compresslevel=3))
    return path


def trace_lines(run: Run) -> Iterator[str]:
    """Events in the trace's format, one line each; times in us from the first traced step."""
    timeline = run.table("timeline")
    origin = lowest(timeline["start_ns"])
    last = highest(timeline["start_ns"] + timeline["wall_ns"])
    name = f"detscope {run.info.get('verb')}"
    yield _line({"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": name}})
    for index, track in enumerate(TRACKS):
        yield from _thread_name(index + 1, track)
    yield from _spans(timeline, origin)
    yield from _workers(run, origin, last)
    yield from _counters(run, origin, last)


def _spans(timeline: pl.DataFrame, origin: int) -> list[str]:
    """The time line as text, by the tables library: there may be hundreds of thousands of operators."""
    shown = pl.when(pl.col("direction").is_in(["backward", "recompute"])).then(
        pl.format("{} ({})", "name", "direction")
    )
    named = timeline.with_columns(shown.otherwise(pl.col("name")).alias("shown"))
    unique = named.select(pl.col("shown").unique())
    escaped = unique.with_columns(
        pl.Series("escaped", [json.dumps(name) for name in unique["shown"].to_list()], dtype=pl.String)
    )
    threads = pl.DataFrame({"track": TRACKS, "tid": range(1, len(TRACKS) + 1)})
    lines = (
        named.join(escaped, on="shown", how="left", maintain_order="left")
        .join(threads, on="track", how="left", maintain_order="left")
        .select(
            pl.concat_str(
                pl.lit('{"ph":"X","pid":1,"cat":"'),
                "track",
                pl.lit('","tid":'),
                "tid",
                pl.lit(',"name":'),
                "escaped",
                pl.lit(',"ts":'),
                (pl.col("start_ns") - origin) / 1e3,
                pl.lit(',"dur":'),
                pl.col("wall_ns") / 1e3,
                pl.lit("}"),
            )
        )
    )
    return lines.to_series().to_list()


def _workers(run: Run, origin: int, last: int) -> Iterator[str]:
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


def _counters(run: Run, origin: int, last: int) -> Iterator[str]:
    for row in run.table("telemetry").iter_rows(named=True):
        if row["source"] != "step" and origin <= row["time_ns"] <= last:
            yield _line(
                {
                    "ph": "C",
                    "name": f"{row['source']} {row['metric']} [{row['unit']}]",
                    "pid": 1,
                    "ts": (row["time_ns"] - origin) / 1e3,
                    "args": {row["metric"]: row["value"]},
                }
            )


def _thread_name(thread: int, name: str) -> Iterator[str]:
    about = {"ph": "M", "pid": 1, "tid": thread}
    yield _line({**about, "name": "thread_name", "args": {"name": name}})
    yield _line({**about, "name": "thread_sort_index", "args": {"sort_index": thread}})


def _span(thread: int, name: str, start_ns: int, wall_ns: int, category: str) -> str:
    return _line(
        {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": 1,
            "tid": thread,
            "ts": start_ns / 1e3,
            "dur": wall_ns / 1e3,
        }
    )


def _line(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))

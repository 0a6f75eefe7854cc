"""One Chrome / Perfetto trace: steps, phases, stages, modules, operators, loader workers, telemetry."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from detscope.analyze.step.columns import highest, lowest
from detscope.runs.atomic import write_bytes
from detscope.runs.reader import Run

TRACKS = ("steps", "phases", "stages", "modules", "operators", "kernels", "device phases", "device stages")
COLLECTIVES_THREAD = 50
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
    drawn = _find_stretches(timeline)
    yield from _process(run, 0 if run.info.get("ranks") else None)
    yield from _spans(timeline, origin)
    yield from _workers(run, origin, drawn)
    yield from _counters(run, origin, drawn)
    yield from _ranks(run, origin, drawn)


def _find_stretches(timeline: pl.DataFrame) -> list[tuple[int, int]]:
    """The time that is drawn: of a long run the first steps and single ones, not all that lies between."""
    steps = timeline.group_by("step").agg(
        pl.col("start_ns").min(), end_ns=(pl.col("start_ns") + pl.col("wall_ns")).max()
    )
    near_ns = 2 * highest(steps["end_ns"] - steps["start_ns"])  # a step or two in between are not drawn
    found: list[tuple[int, int]] = []
    for start_ns, end_ns in steps.sort("start_ns").select("start_ns", "end_ns").iter_rows():
        if found and start_ns - found[-1][1] <= near_ns:
            found[-1] = (found[-1][0], max(end_ns, found[-1][1]))
        else:
            found.append((start_ns, end_ns))
    return found


def _are_drawn(drawn: list[tuple[int, int]], start: str, length: str | None = None) -> pl.Expr:
    """Whether rows reach into what is drawn."""
    begin, wall = pl.col(start), pl.col(length) if length else pl.lit(0)
    parts = [(begin <= end_ns) & (begin + wall >= start_ns) for start_ns, end_ns in drawn]
    return pl.any_horizontal(parts) if parts else pl.lit(False)


def _process(run: Run, rank: int | None) -> Iterator[str]:
    """A process of the trace: the run, or one of its ranks."""
    name = f"detscope {run.info.get('verb')}" + ("" if rank is None else f" rank {rank}")
    process = (rank or 0) + 1
    yield _line({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}})
    order = {"sort_index": process}
    yield _line({"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": order})
    for index, track in enumerate(TRACKS):
        if run.info.get("device_clock") or not track.startswith("device"):
            yield from _thread_name(index + 1, track, process)


def _ranks(run: Run, origin: int, stretches: list[tuple[int, int]]) -> Iterator[str]:
    """The other ranks as processes of their own, and the collectives of all of them."""
    others = run.table("rank_timeline")
    for rank in sorted(others["rank"].unique().to_list()):
        yield from _process(run, rank)
        yield from _spans(others.filter(pl.col("rank") == rank), origin, rank + 1)
    drawn = run.table("communication").filter(_are_drawn(stretches, "start_ns"))
    for rank in sorted(drawn["rank"].unique().to_list()):
        yield from _thread_name(COLLECTIVES_THREAD, "collectives", rank + 1)
    for row in drawn.iter_rows(named=True):  # buckets overlap, which spans of one thread must not: async ones
        name = f"bucket {row['bucket']}" if row["kind"] == "gradients" else row["kind"]
        about = {"name": name, "cat": "collectives", "pid": row["rank"] + 1, "tid": COLLECTIVES_THREAD}
        about["id"] = f"{row['rank']}-{row['step']}-{row['group']}-{row['kind']}-{row['bucket']}"
        start_us = (row["start_ns"] - origin) / 1e3
        yield _line({"ph": "b", "ts": start_us, **about, "args": {"bytes": row["bytes"]}})
        yield _line({"ph": "e", "ts": start_us + row["wall_ns"] / 1e3, **about})


def _spans(timeline: pl.DataFrame, origin: int, process: int = 1) -> list[str]:
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
                pl.lit(f'{{"ph":"X","pid":{process},"cat":"'),
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


def _workers(run: Run, origin: int, drawn: list[tuple[int, int]]) -> Iterator[str]:
    named: set[int] = set()
    rows = run.table("loader").filter(_are_drawn(drawn, "start_ns", "wall_ns"))
    for row in rows.iter_rows(named=True):
        thread = WORKER_THREADS_FROM + row["worker"] + 1
        if thread not in named:
            named.add(thread)
            yield from _thread_name(
                thread, "loading in the loop" if row["worker"] < 0 else f"loader worker {row['worker']}"
            )
        name = f"batch of step {row['step']}" if row["region"] == "batch" else row["region"]
        yield _span(thread, name, row["start_ns"] - origin, row["wall_ns"], "loader")


def _counters(run: Run, origin: int, drawn: list[tuple[int, int]]) -> Iterator[str]:
    rows = run.table("telemetry").filter((pl.col("source") != "step") & _are_drawn(drawn, "time_ns"))
    for row in rows.iter_rows(named=True):
        yield _line(
            {
                "ph": "C",
                "name": f"{row['source']} {row['metric']} [{row['unit']}]",
                "pid": 1,
                "ts": (row["time_ns"] - origin) / 1e3,
                "args": {row["metric"]: row["value"]},
            }
        )


def _thread_name(thread: int, name: str, process: int = 1) -> Iterator[str]:
    about = {"ph": "M", "pid": process, "tid": thread}
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

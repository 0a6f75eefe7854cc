"""A made-up program as the tables of a run, and as the Chrome trace that torch.profiler would write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
from made_program import PROCESS, TICK_NS, Program

from detscope.runs.writer import polars_schema


def tables(program: Program) -> tuple[pl.DataFrame, pl.DataFrame]:
    """device_events and host_events."""
    device = [
        {
            "rank": 0,
            "device": 0,
            "stream": e.stream,
            "kind": e.kind,
            "name": e.name,
            "start_ns": e.start * TICK_NS,
            "wall_ns": (e.end - e.start) * TICK_NS,
            "correlation": e.launch.correlation if e.linked else None,
            "launch_ns": e.launch.start * TICK_NS if e.linked else None,
            "launch_wall_ns": (e.launch.end - e.launch.start) * TICK_NS if e.linked else None,
            "launch_thread": e.launch.thread if e.linked else None,
            "operator": e.operator,
            "module": e.module,
            "direction": e.direction,
            "phase": e.phase,
            "step": e.step,
            "copy": e.copy,
            "communication": False,
            "blocks_per_sm": e.blocks,
            "occupancy": e.occupancy,
        }
        for e in program.device
    ]
    host = [
        {
            "rank": 0,
            "process": PROCESS,
            "thread": e.thread,
            "kind": e.kind,
            "name": e.name,
            "start_ns": e.start * TICK_NS,
            "wall_ns": (e.end - e.start) * TICK_NS,
            "correlation": e.correlation,
            "sequence": e.sequence,
        }
        for e in program.host
    ]
    return (
        pl.DataFrame(device, schema=polars_schema("device_events")),
        pl.DataFrame(host, schema=polars_schema("host_events")),
    )


CATEGORIES = {
    "operator": "cpu_op",
    "runtime": "cuda_runtime",
    "step": "user_annotation",
    "loader": "user_annotation",
    "annotation": "user_annotation",
    "module": "python_function",
}
DEVICE_CATEGORIES = {"kernel": "kernel", "copy": "gpu_memcpy", "set": "gpu_memset"}


def write_trace(program: Program, path: Path, shift_us: int = 1_700_000_000_000_000) -> None:
    """The file a profiler would have written, events in no particular order."""
    events: list[dict[str, Any]] = []
    for e in program.host:
        arguments: dict[str, Any] = {}
        if e.correlation is not None:
            arguments["correlation"] = e.correlation
            arguments["External id"] = _external(program, e)
        if e.kind == "operator":
            arguments["External id"] = e.external
        if e.sequence is not None:
            arguments["Sequence number"] = e.sequence
            arguments["Fwd thread id"] = 1 if "Backward" in e.name else 0
        events.append(
            _event(
                CATEGORIES[e.kind], e.name, PROCESS, e.thread, e.start + shift_us, e.end - e.start, arguments
            )
        )
    for d in program.device:
        arguments = {
            "device": 0,
            "stream": d.stream,
            "correlation": d.launch.correlation if d.linked else 10**6 + d.start,
        }
        if d.linked:
            arguments["External id"] = _external(program, d.launch)
        if d.kind == "kernel":
            arguments |= {"blocks per SM": d.blocks, "est. achieved occupancy %": d.occupancy}
        events.append(
            _event(
                DEVICE_CATEGORIES[d.kind], d.name, 0, d.stream, d.start + shift_us, d.end - d.start, arguments
            )
        )
    events.sort(key=lambda event: (event["name"], event["ts"]))
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))


def _event(
    category: str, name: str, process: int, thread: int, start: int, wall: int, arguments: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": start,
        "dur": wall,
        "args": arguments,
    }


def _external(program: Program, call: Any) -> int:
    """The innermost operator around a call."""
    around = [
        e
        for e in program.host
        if e.kind == "operator" and e.thread == call.thread and e.start <= call.start and call.end <= e.end
    ]
    return max(around, key=lambda e: e.start).external or 0 if around else 0

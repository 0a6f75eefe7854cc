"""Kernels, copies and the host calls behind them, as rows of `device_events` and `host_events`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from detscope.record.operators.attribution import NOBODY, OPTIMIZER, Attribution
from detscope.record.operators.profiler import DEVICE_KINDS, DeviceSide, OperatorEvents
from detscope.record.steps.events import ENTER, EXIT, SPAN_PREFIX, decode_events
from detscope.record.steps.nodes import NodeTable
from detscope.runs.writer import polars_schema

LOADER = "DataLoader.__next__"
COMMUNICATION = re.compile(r"nccl|rccl", re.IGNORECASE)
_COPY = re.compile(r"HtoD|DtoH|DtoD|PtoP")
_NUMBERS = {
    "bytes": re.compile(r'"bytes": (\d+)'),
    "blocks_per_sm": re.compile(r'"blocks per SM": ([\d.]+)'),
    "occupancy": re.compile(r'"est\. achieved occupancy %": ([\d.]+)'),
}
Row = dict[str, Any]


@dataclass(frozen=True)
class StepSpan:
    """One step of the operator window, in the recorder's clock."""

    index: int
    start_ns: int
    waited_ns: int  # when its batch had arrived
    end_ns: int


def make_device_tables(
    raw: OperatorEvents,
    found: Attribution,
    nodes: NodeTable,
    events: Sequence[int],
    steps: Sequence[StepSpan],
    rank: int = 0,
) -> tuple[pl.DataFrame, pl.DataFrame] | None:
    """The two tables of a window; None where no device was recorded."""
    if raw.device is None or raw.correlations is None:
        return None
    phases = find_phase_spans(events, nodes)
    device = _make_device_rows(raw, raw.device, raw.correlations, found, nodes, phases, steps)
    host: list[Row] = []
    for step in steps:
        for kind, name, end_ns in (
            ("step", f"step {step.index}", step.end_ns),
            ("loader", LOADER, step.waited_ns),
        ):
            times = {"start_ns": step.start_ns, "wall_ns": end_ns - step.start_ns}
            host.append({"kind": kind, "name": name, **times})
    host += _make_host_rows(raw, raw.device, found, nodes)
    return (
        pl.DataFrame([{"rank": rank, **row} for row in device], schema=polars_schema("device_events")),
        pl.DataFrame([{"rank": rank, **row} for row in host], schema=polars_schema("host_events")),
    )


def find_phase_spans(events: Sequence[int], nodes: NodeTable) -> list[tuple[int, int, str]]:
    """Begin, end and name of every phase, in order of its end."""
    begun: dict[int, int] = {}
    spans = []
    for number, what, time_ns, _ in decode_events(events):
        if nodes[number].kind != "phase":
            continue
        if what == ENTER:
            begun[number] = time_ns
        elif what == EXIT and number in begun:
            spans.append((begun.pop(number), time_ns, nodes[number].path))
    return spans


def _make_device_rows(
    raw: OperatorEvents,
    side: DeviceSide,
    correlations: list[int],
    found: Attribution,
    nodes: NodeTable,
    phases: list[tuple[int, int, str]],
    steps: Sequence[StepSpan],
) -> list[Row]:
    calls = {side.launches[i]: i for i, kind in enumerate(side.kinds) if kind == "runtime"}
    operators = {
        correlations[i]: i for i, kind in enumerate(side.kinds) if not kind and found.context_of[i] >= 0
    }
    rows = []
    for index, kind in enumerate(side.kinds):
        if kind not in DEVICE_KINDS:
            continue
        call = calls.get(side.launches[index])
        launch_ns = None if call is None else raw.starts_ns[call] - found.offset_ns
        start_ns = raw.starts_ns[index] - found.offset_ns
        moment = start_ns if launch_ns is None else launch_ns
        name = raw.names[index]
        copied = _COPY.search(name) if kind == "copy" else None
        row: Row = {
            "device": side.devices[index],
            "stream": side.streams[index],
            "kind": kind,
            "name": name,
            "start_ns": start_ns,
            "wall_ns": raw.durations_ns[index],
            "correlation": side.launches[index],
            "launch_ns": launch_ns,
            "launch_wall_ns": None if call is None else raw.durations_ns[call],
            "launch_thread": None if call is None else raw.threads[call],
            "step": next((step.index for step in steps if step.start_ns <= moment < step.end_ns), None),
            "copy": copied.group() if copied else None,
            "communication": kind == "kernel" and bool(COMMUNICATION.search(name)),
        }
        for number, pattern in _NUMBERS.items():
            match = pattern.search(side.metadata.get(index, ""))
            if match:
                row[number] = int(match.group(1)) if number == "bytes" else float(match.group(1))
        operator = operators.get(correlations[index])
        if operator is not None:  # else nobody launched it
            owner, stage, phase, direction = found.contexts[found.context_of[operator]]
            if phase == "other":  # modules, autograd and optimizer say it; the rest is the recorder's
                phase = next((name for start, end, name in phases if start <= moment < end), phase)
            row |= {
                "operator": raw.names[operator],
                "module": None if owner == NOBODY else nodes[owner].path,
                "stage": stage or None,
                "direction": direction,
                "phase": phase,
            }
        rows.append(row)
    return rows


def _make_host_rows(raw: OperatorEvents, side: DeviceSide, found: Attribution, nodes: NodeTable) -> list[Row]:
    rows: list[Row] = []
    for index, kind in enumerate(side.kinds):
        if kind in DEVICE_KINDS:
            continue
        name = raw.names[index]
        if kind == "runtime":
            what = "runtime"
        elif name.startswith(SPAN_PREFIX):
            node = nodes[int(name[len(SPAN_PREFIX) :])]
            what, name = "phase" if node.kind == "phase" else "module", node.path or node.type_name
        else:
            what = "annotation" if name.startswith(OPTIMIZER) else "operator"
        rows.append(
            {
                "thread": raw.threads[index],
                "kind": what,
                "name": name,
                "start_ns": raw.starts_ns[index] - found.offset_ns,
                "wall_ns": raw.durations_ns[index],
                "correlation": side.launches[index] if kind == "runtime" else None,
                "sequence": raw.sequences[index] if raw.sequences[index] >= 0 else None,
            }
        )
    return rows

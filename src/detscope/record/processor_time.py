"""Processor time of a step by phase, from marks at its borders. Pure: numbers in, rows out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detscope.record.steps.events import BATCH_ARRIVED, ENTER, EXIT, STEP_BEGINS, STEP_ENDS
from detscope.record.steps.nodes import NodeTable

SOURCE, METRIC = "step", "processor_ns"


def processor_account(marks: Sequence[int], nodes: NodeTable) -> dict[str, int]:
    """Processor time by phase, and of the whole "step"; between two marks one phase runs."""
    spent: dict[str, int] = {}
    stack: list[str] = []
    last_ns: int | None = None
    first_ns = 0
    for index in range(0, len(marks) - 1, 2):
        code, now_ns = marks[index], marks[index + 1]
        if code == STEP_BEGINS:
            spent, stack, last_ns, first_ns = {}, ["data"], now_ns, now_ns
            continue
        if last_ns is None:
            continue
        phase = stack[-1] if stack else "other"
        spent[phase] = spent.get(phase, 0) + now_ns - last_ns
        last_ns = now_ns
        if code == BATCH_ARRIVED:
            stack = []
        elif code == STEP_ENDS:
            spent["step"] = now_ns - first_ns
        elif code & 3 == ENTER:
            stack.append(nodes[code >> 2].path)
        elif code & 3 == EXIT and stack:
            stack.pop()
    return spent if "step" in spent else {}


def processor_rows(start_ns: int, marks: Sequence[int], nodes: NodeTable) -> list[tuple[Any, ...]]:
    """Rows of `telemetry` that belong to the step which began at `start_ns`."""
    return [
        (start_ns, SOURCE, f"{METRIC} {phase}", float(spent), "ns")
        for phase, spent in processor_account(marks, nodes).items()
    ]

"""Where an optimizer steps, and how many kernels it would launch on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.census import CensusPlace

if TYPE_CHECKING:
    from detscope.analyze.summary import OptimizerFacts

FUSED_LAUNCHES = 2  # of a group: the steps are counted, the tensors updated
# operations on every tensor in one update, as the dispatcher showed them (torch 2.15; SGD with momentum)
_OPERATIONS = {"Adam": 8, "AdamW": 9, "SGD": 3}
_ELSE = 8
_TENSORS_OF_ONE_KERNEL = 100  # about so many small tensors go into one launch of a foreach operation


def find_step_lines(case: LineCase) -> list[CensusPlace]:
    """Launches of the line that launches most while an optimizer steps."""
    rows = case.places("launch", accept=lambda place: place.phase == "optimizer")
    groups = case.by_function(rows)
    return groups[0] if groups else []


def count_device_launches(row: OptimizerFacts, groups: int) -> float:
    """Kernels of an update with so many groups on a device: an estimate."""
    each, tensors = _OPERATIONS.get(row.name or "", _ELSE), row.tensors or 0
    if row.way == "fused":
        return float(FUSED_LAUNCHES * groups)
    if row.way == "loop" and row.way_given:
        return float(each * tensors)
    return float(each * max(groups, tensors / _TENSORS_OF_ONE_KERNEL))


def tell_ways(row: OptimizerFacts) -> str:
    """How it would do on a device what it did here."""
    unasked = row.way == "loop" and not row.way_given
    return "on a device, where torch takes foreach by itself," if unasked else "on a device"

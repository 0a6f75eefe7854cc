"""Memory that grows from step to step: how fast, and which variable of the script keeps it.

One short read of `/proc` at every border tells how large the process is. Only once it has grown steadily are
all containers looked at, between three neighbouring steps: one that got longer in each of them by about as
many bytes as the process is what keeps them. Nothing is put on the script, its tensors or torch.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from detscope.record.growth_holders import (
    GRAPH,
    Holder,
    Place,
    added_bytes,
    find_graph_holder,
    find_holder,
    graph_sizes,
)

LEAST_BYTES = 1 << 20  # per step: allocators and caches move by less
LEAST_READINGS = 12  # from which growth is told
SUSPICIOUS_READINGS = 8  # from which its cause is looked for
STEADY = 0.5  # of the whole slope: every quarter of the steps has grown by this much at least,
STILL = 0.75  # and the last one by this much: what settles is no growth
_MOST_READINGS = 4096
_MOST_LOOKS = 2  # all objects of the process are gone through: some hundred milliseconds each
_LOOKED_AT = (list, dict, set, deque)
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(frozen=True)
class Growth:
    """Growth that is steady over the steps it was seen in."""

    bytes_per_step: float
    lowest: float  # of the quarters of these steps
    highest: float
    first_step: int
    last_step: int
    n: int


def growth_of(readings: Sequence[tuple[int, int]], least: int = LEAST_READINGS) -> Growth | None:
    """Whether (step, bytes) grow steadily: in every quarter, and at the end as at the beginning."""
    if len(readings) < least:
        return None
    size = len(readings) // 4
    chosen = readings[len(readings) - 4 * size :]
    middles = [
        (median(step for step, _ in part), median(size_bytes for _, size_bytes in part))
        for part in (chosen[start : start + size] for start in range(0, 4 * size, size))
    ]
    slopes = [(after - before) / (later - earlier) for (earlier, before), (later, after) in pairwise(middles)]
    whole = (middles[-1][1] - middles[0][1]) / (middles[-1][0] - middles[0][0])
    if whole < LEAST_BYTES or min(slopes) < STEADY * whole or slopes[-1] < STILL * whole:
        return None
    return Growth(whole, min(slopes), max(slopes), chosen[0][0], chosen[-1][0], len(chosen))


class GrowthWatch:
    """Told of every step that ended; looks for the cause once, if there is something to look for."""

    def __init__(self) -> None:
        self._readings: list[tuple[int, int]] = []
        self._lengths: dict[int, int] | None = None  # of all containers, at the border before
        self._grown: dict[int, int] | None = None  # those that were longer at the border after that
        self._graphs: list[dict[Place, int]] = []  # of tensors kept beyond their step, at these borders
        self._looks = 0
        self._holder: Holder | None = None

    def ends_step(self, step: int) -> None:
        """A step has ended in which nothing of ours took memory."""
        used = resident_bytes()
        if used is None:
            return
        self._readings.append((step, used))
        if len(self._readings) > _MOST_READINGS:
            del self._readings[::2]
        if self._holder is None and self._looks < _MOST_LOOKS:
            try:
                self._look()
            except Exception:  # objects of others answer as they like: then nobody is named
                self._looks = _MOST_LOOKS

    def start_again(self) -> None:
        """What came so far does not count: a profiler took memory."""
        self._readings.clear()
        self._lengths = self._grown = None
        self._graphs = []

    def _look(self) -> None:
        if self._lengths is None:
            recent = self._readings[-2 * SUSPICIOUS_READINGS :]
            if len(self._readings) % 4 == 0 and growth_of(recent, SUSPICIOUS_READINGS):
                self._lengths = _lengths()
                self._graphs = [graph_sizes(sys._getframe())]
            return
        if self._grown is None:
            now, before = _lengths(), self._lengths
            self._grown = {one: size for one, size in now.items() if before.get(one, size) < size}
            self._graphs.append(graph_sizes(sys._getframe()))
            return
        before, self._lengths, self._grown = self._grown, None, None
        (first, second), self._graphs = self._graphs, []
        self._looks += 1
        growth = growth_of(self._readings[-2 * SUSPICIOUS_READINGS :], SUSPICIOUS_READINGS)
        if growth is not None:
            self._holder = _largest(before, growth.bytes_per_step)
        if growth is not None and self._holder is None:
            self._holder = find_graph_holder(first, second, graph_sizes(sys._getframe()))

    def describe(self) -> dict[str, Any] | None:
        """For `run.json`; None where memory does not grow."""
        half = self._readings[len(self._readings) // 2 :]
        found = growth_of(self._readings) or growth_of(half)
        if found is None:
            return None
        held = None if self._holder is None else asdict(self._holder)
        return {**asdict(found), "held_by": held, "note": sentence(found, self._holder)}


def sentence(growth: Growth, holder: Holder | None) -> str:
    """What is said of it in every view."""
    steps = f"steps {growth.first_step} to {growth.last_step}, n {growth.n}"
    size = f"memory grows by {growth.bytes_per_step / 1e6:.1f} MB per step ({steps})"
    if holder is None:
        return f"{size}; line: cannot tell: no container of the script gets longer by so much each step"
    where = holder.line or "line: cannot tell: not found in its source"
    if holder.kind == GRAPH:
        keeps = f"{holder.name} keeps the graphs of all steps, {holder.items} nodes more each step"
        return f"{size}: {keeps}, {where} (`.item()` or `.detach()` lets them go)"
    what = "tensors with their graphs" if holder.keeps_graphs else holder.kind
    return f"{size}: {holder.name} keeps {what}, {holder.items} more each step, {where}"


def resident_bytes() -> int | None:
    """What the process has of the machine's memory; None where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return None


def _lengths() -> dict[int, int]:
    return {id(one): len(one) for one in gc.get_objects() if type(one) in _LOOKED_AT}


def _largest(before: dict[int, int], wanted: float) -> Holder | None:
    """Of the containers that got longer twice, the one that got larger by most."""
    best: tuple[float, Any, int, Any] | None = None
    for one in gc.get_objects():
        items = len(one) - before.get(id(one), len(one)) if type(one) in _LOOKED_AT else 0
        if items <= 0:
            continue
        added = added_bytes(one, items)
        # what a graph keeps is not seen from Python: a tensor that has one may be all of it
        much = max(added.bytes, wanted if added.graphs else 0.0)
        if much >= wanted / 4 and (best is None or much > best[0]):
            best = (much, one, items, added)
    if best is None:
        return None
    _, container, items, added = best
    del best
    return find_holder(container, sys._getframe(), items, added)

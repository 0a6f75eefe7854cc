"""Memory that grows from step to step: how fast, and which variable of the script keeps it.

One short read of `/proc` at every border tells how large the process is. Only once it has grown steadily are
all containers looked at, between three neighbouring steps: one that got longer in each of them by about as
many bytes as the process is what keeps them. Nothing is put on the script, its tensors or torch.
"""

from __future__ import annotations

import ast
import gc
import inspect
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from types import FrameType, ModuleType
from typing import Any

import torch

from detscope.record.memory.live import describe_tensor

_OWN = str(Path(__file__).parents[2])
_GROWING = {"append", "appendleft", "extend", "insert", "add", "update", "setdefault"}
_CONTAINERS = (list, dict, tuple, set, deque)
_DEPTH = 3  # containers in containers that are followed
_MOST_ITEMS = 64
_MOST_GRAPHS = 32  # tensors alive between two steps that are looked at
_MOST_NODES = 200_000  # of one graph that are counted
GRAPH = "graph"
_OPTIMIZED = inspect.CO_OPTIMIZED  # variables of such code live outside of a dictionary


@dataclass(frozen=True)
class GrowingVariable:
    """A variable or attribute that keeps more each step."""

    name: str
    kind: str  # of what it keeps: "tensors", "bytes", ...
    items: int  # more per step
    bytes: int  # of these, as far as they are seen from Python
    keeps_graphs: bool
    line: str | None  # file:line where it is made longer


_Addition = tuple[int, bool, str]  # what came into a container: bytes, whether with graphs, kind


def _weigh_added(container: Any, items: int) -> _Addition:
    """Of the last items; the order of a set is anybody's guess."""
    values = container.values() if isinstance(container, dict) else container
    last: Iterator[Any] = reversed(values) if hasattr(values, "__reversed__") else iter(values)
    added = list(islice(last, min(items, _MOST_ITEMS)))
    sizes = [_weigh_item(item, _DEPTH) for item in added]
    kinds = ("tensors" if isinstance(item, torch.Tensor) else type(item).__name__ for item in added)
    return sum(size for size, _ in sizes), any(graphs for _, graphs in sizes), next(kinds, "objects")


def _weigh_item(item: Any, depth: int) -> tuple[int, bool]:
    if isinstance(item, torch.Tensor):
        stored = describe_tensor(item, "", "")
        return 0 if stored is None else stored.bytes, item.grad_fn is not None
    if type(item) in _CONTAINERS and depth:
        inner = item.values() if isinstance(item, dict) else item
        sizes = [_weigh_item(one, depth - 1) for one in islice(inner, _MOST_ITEMS)]
        return sum(size for size, _ in sizes), any(graphs for _, graphs in sizes)
    if isinstance(getattr(item, "nbytes", None), int):
        return item.nbytes, False
    return sys.getsizeof(item, 0), False


def _find_holder(
    container: Any, frame: FrameType | None, items: int, added: _Addition
) -> GrowingVariable | None:
    """The variable of a running function, of a module, or the attribute through which it is kept."""
    frames, level = _script_frames(frame), [container]
    for _ in range(_DEPTH):
        for one in level:
            place = _find_scope(one, frames)
            if place is not None:
                size, graphs, kind = added
                return _make_variable(place, kind, items, size, graphs)
        above = [one for part in level for one in gc.get_referrers(part) if type(one) in _CONTAINERS]
        level = [one for one in above if one is not level][:_MOST_ITEMS]
    return None


VariableScope = tuple[str, str, int, int]  # name, file, first and last line in which it can be used


def measure_graphs(frame: FrameType | None) -> dict[VariableScope, int]:
    """Variables and attributes that keep a tensor with its graph, and how many nodes that graph has."""
    frames, found = _script_frames(frame), {}
    # others than plain tensors answer by code of their own
    kept = [one for one in gc.get_objects() if type(one) is torch.Tensor]
    for one in [one for one in kept if one.grad_fn is not None][:_MOST_GRAPHS]:
        place = _find_scope(one, frames)
        if place is None:
            continue
        seen: set[Any] = {one.grad_fn}
        waiting: list[Any] = [one.grad_fn]
        while waiting and len(seen) < _MOST_NODES:
            for following, _ in waiting.pop().next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        found[place] = len(seen)
    return found


def _find_graph_holder(
    first: dict[VariableScope, int], second: dict[VariableScope, int], third: dict[VariableScope, int]
) -> GrowingVariable | None:
    """Of the graphs that grew between three neighbouring steps, the one that grew by most."""
    grown = {
        place: (size - first[place]) // 2
        for place, size in third.items()
        if place in first and first[place] < second.get(place, 0) < size
    }
    if not grown:
        return None
    place = max(grown, key=lambda one: grown[one])
    return _make_variable(place, GRAPH, grown[place], 0, True)


def _make_variable(place: VariableScope, kind: str, items: int, size: int, graphs: bool) -> GrowingVariable:
    name, file, first, last = place
    line = find_growing_line(file, name.rpartition(".")[2], first, last)
    return GrowingVariable(name, kind, items, size, graphs, line)


def _script_frames(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OWN):
            frames.append(frame)
        frame = frame.f_back
    return frames


def _find_scope(value: Any, frames: list[FrameType]) -> VariableScope | None:
    for frame in frames if sys.gettrace() is None else ():  # a debugger may write back what is read here
        code = frame.f_code
        if not code.co_flags & _OPTIMIZED:
            continue
        variables = frame.f_locals
        name = next((name for name, one in variables.items() if one is value), None)
        if type(variables) is dict:
            variables.clear()  # a copy that the frame would keep, and with it what is in it
        if name is not None:
            last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
            return name, code.co_filename, code.co_firstlineno, last
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and not module.__name__.startswith("detscope"):
            for name, one in list(vars(module).items()):
                if one is value:
                    return name, getattr(module, "__file__", None) or "", 0, sys.maxsize
    return _find_in_instances(value)


def _find_in_instances(value: Any) -> VariableScope | None:
    for owner in gc.get_referrers(value):
        if type(owner) is dict:
            holders = [one for one in gc.get_referrers(owner) if getattr(one, "__dict__", None) is owner]
        else:
            holders = [owner]
        for holder in holders:
            kind = type(holder)
            ours = kind.__module__.split(".")[0] == "detscope"
            if ours or isinstance(holder, (ModuleType, FrameType, *_CONTAINERS)):
                continue
            attributes: Mapping[str, Any] = getattr(holder, "__dict__", None) or {}
            name = next((name for name, one in attributes.items() if one is value), None)
            if name is not None:
                file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
                return f"{kind.__name__}.{name}", file, 0, sys.maxsize
    return None


def find_growing_line(file: str, name: str, first: int = 0, last: int = sys.maxsize) -> str | None:
    """Where the source makes a variable or attribute longer, as file:line; up to three places."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.expr, ast.stmt)))
    inside = (node for node in nodes if first <= node.lineno <= last)
    lines = sorted({node.lineno for node in inside if _makes_longer(node, name)})
    return ", ".join(f"{Path(file).name}:{line}" for line in lines[:3]) or None


def _makes_longer(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _GROWING and _find_root_name(node.func.value) == name
    if isinstance(node, ast.AugAssign):
        return _find_root_name(node.target) == name
    if isinstance(node, ast.Assign):
        targets = [target for target in node.targets if _find_root_name(target) == name]
        again = any(_find_root_name(part) == name for part in ast.walk(node.value))  # total = total + loss
        return any(isinstance(target, ast.Subscript) for target in targets) or bool(targets and again)
    return False


def _find_root_name(node: ast.AST) -> str | None:
    """The variable or attribute that an expression goes through: `history` of `self.history[key]`."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
        if isinstance(node, ast.Attribute) and node.attr in (*_GROWING, "get"):
            node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


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


def find_growth(readings: Sequence[tuple[int, int]], least: int = LEAST_READINGS) -> Growth | None:
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
        # of tensors kept beyond their step, at these borders
        self._graphs: list[dict[VariableScope, int]] = []
        self._looks = 0
        self._holder: GrowingVariable | None = None

    @property
    def is_looking(self) -> bool:
        """Whether neighbouring steps are being compared: none may be left out."""
        return self._lengths is not None

    def end_step(self, step: int) -> None:
        """A step has ended in which nothing of ours took memory."""
        used = read_resident_bytes()
        if used is None:
            return
        self._readings.append((step, used))
        if len(self._readings) > _MOST_READINGS:
            del self._readings[::2]
        if self._holder is None and self._looks < _MOST_LOOKS:
            try:
                self._look_for_cause()
            except Exception:  # objects of others answer as they like: then nobody is named
                self._looks = _MOST_LOOKS

    def start_again(self) -> None:
        """What came so far does not count: a profiler took memory."""
        self._readings.clear()
        self._lengths = self._grown = None
        self._graphs = []

    def _look_for_cause(self) -> None:
        recent = self._readings[-2 * SUSPICIOUS_READINGS :]
        if self._lengths is None:
            if len(self._readings) % 4 == 0 and find_growth(recent, SUSPICIOUS_READINGS):
                self._lengths = _measure_lengths()
                self._graphs = [measure_graphs(sys._getframe())]
        elif self._grown is None:
            now, before = _measure_lengths(), self._lengths
            self._grown = {one: size for one, size in now.items() if before.get(one, size) < size}
            self._graphs.append(measure_graphs(sys._getframe()))
        else:
            before, self._lengths, self._grown = self._grown, None, None
            (first, second), self._graphs = self._graphs, []
            self._looks += 1
            growth = find_growth(recent, SUSPICIOUS_READINGS)
            if growth is not None:
                self._holder = _find_largest(before, growth.bytes_per_step)
                if self._holder is None:
                    self._holder = _find_graph_holder(first, second, measure_graphs(sys._getframe()))

    def describe_growth(self) -> dict[str, Any] | None:
        """For `run.json`; None where memory does not grow."""
        half = self._readings[len(self._readings) // 2 :]
        found = find_growth(self._readings) or find_growth(half)
        if found is None:
            return None
        steps = f"steps {found.first_step} to {found.last_step}, n {found.n}"
        note = f"memory grows by {found.bytes_per_step / 1e6:.1f} MB per step ({steps})"
        holder = self._holder
        if holder is None:
            note += "; line: cannot tell: no container of the script gets longer by so much each step"
            return {**asdict(found), "held_by": None, "note": note}
        where = holder.line or "line: cannot tell: not found in its source"
        if holder.kind == GRAPH:
            keeps = f"the graphs of all steps, {holder.items} nodes more each step"
            where += " (`.item()` or `.detach()` lets them go)"
        else:
            what = "tensors with their graphs" if holder.keeps_graphs else holder.kind
            keeps = f"{what}, {holder.items} more each step"
        note += f": {holder.name} keeps {keeps}, {where}"
        return {**asdict(found), "held_by": asdict(holder), "note": note}


def read_resident_bytes() -> int | None:
    """What the process has of the machine's memory; None where the system does not say."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY)  # at every border: a third of what a `Path` takes
        try:
            return int(os.read(file, 100).split()[1]) * _PAGE
        finally:
            os.close(file)
    except (OSError, IndexError, ValueError):
        return None


def _measure_lengths() -> dict[int, int]:
    return {id(one): len(one) for one in gc.get_objects() if type(one) in _LOOKED_AT}


def _find_largest(before: dict[int, int], wanted: float) -> GrowingVariable | None:
    """Of the containers that got longer twice, the one that got larger by most."""
    best: tuple[float, Any, int, _Addition] | None = None
    for one in gc.get_objects():
        items = len(one) - before.get(id(one), len(one)) if type(one) in _LOOKED_AT else 0
        if items <= 0:
            continue
        size, graphs, _ = added = _weigh_added(one, items)
        # what a graph keeps is not seen from Python: a tensor that has one may be all of it
        much = max(size, wanted if graphs else 0.0)
        if much >= wanted / 4 and (best is None or much > best[0]):
            best = (much, one, items, added)
    if best is None:
        return None
    _, container, items, added = best
    del best
    return _find_holder(container, sys._getframe(), items, added)

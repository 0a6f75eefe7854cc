"""Modules and stages as intervals of time, each with its path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detscope.traces import naming
from detscope.traces.columns import EventColumns, TraceEvents, ValueNumbers, join_columns
from detscope.traces.nesting import NOBODY, NestedIntervals, Numbers, take_values

ROOT = ""
IN_FORWARD, IN_BACKWARD, IN_RECOMPUTE = range(3)
DIRECTIONS = ("forward", "backward", "recompute")


@dataclass(frozen=True)
class ModuleIntervals:
    """Intervals of modules, or of stages, each with its path."""

    intervals: EventColumns
    path: Numbers  # into `paths`
    paths: list[str]
    types: dict[str, str]
    direction: Numbers  # into `DIRECTIONS`
    nest: NestedIntervals
    parents: Numbers
    made_of: str

    def __len__(self) -> int:
        return len(self.intervals)

    @property
    def has_backward(self) -> bool:
        """Whether some of them are intervals of backward; else the autograd nodes tell."""
        return bool((self.direction == IN_BACKWARD).any())

    def find_path(self, threads: NDArray[np.integer], times_ns: Numbers) -> Numbers:
        """The path of the innermost interval around each moment on a thread, or `NOBODY`."""
        return take_values(self.path, self.nest.find_innermost(threads, times_ns))


def find_modules(trace: TraceEvents, engine: NestedIntervals) -> ModuleIntervals:
    """Modules by Python events, by detscope's own trace, or by annotations that spell a path."""
    if "own module" in trace.own:
        return _read_own(trace, "own module")
    python = trace.python.take_rows(trace.check_names(trace.python, naming.MODULE_EVENT.search))
    if len(python):  # paths of types and numbers ("Encoder_0.Linear_2"): it does not have attribute names
        return _name_by_nesting(trace, python, engine)
    spelled = trace.annotations.take_rows(trace.check_names(trace.annotations, naming.module_path))
    names = trace.map_names(spelled, lambda name: naming.module_path(name) or (ROOT, ""))
    paths, made_of = [path for path, _ in names], "annotations" if names else ""
    return make_intervals(trace, spelled, paths, dict(names), made_of, find_recomputed(engine, spelled))


def _name_by_nesting(trace: TraceEvents, python: EventColumns, engine: NestedIntervals) -> ModuleIntervals:
    labels = trace.map_names(python, lambda name: name.partition("nn.Module: ")[2])
    walk, direction = walk_down(trace.nest_events(python)), find_recomputed(engine, python)
    again = (direction == IN_RECOMPUTE).tolist()
    one_root = len({labels[index] for index, parent in walk if parent == NOBODY and not again[index]}) == 1
    paths: dict[int, str] = {}
    seen: dict[str, str] = {}  # a label is one module, wherever it runs
    # forward first: where a part is run again by the engine, nothing is around it that would tell its place
    for index, parent in sorted(walk, key=lambda pair: again[pair[0]]):
        label = labels[index]
        outermost = parent == NOBODY or again[index] > again[parent]
        above = "" if outermost else paths[parent]
        path = ROOT if outermost and one_root else f"{above}.{label}" if above else label
        paths[index] = seen.get(label, label) if again[index] and outermost else path
        seen.setdefault(label, paths[index])
    types = {paths[i]: labels[i].rpartition("_")[0] or labels[i] for i in range(len(python))}
    whole = [paths[i] for i in range(len(python))]
    return make_intervals(trace, python, whole, types, "nn.Module events", direction)


def find_stages(trace: TraceEvents, modules: ModuleIntervals, engine: NestedIntervals) -> ModuleIntervals:
    """Stages by detscope's own trace, by annotations that name one, else the root's direct children."""
    if "own stage" in trace.own:
        return _read_own(trace, "own stage")
    found = trace.annotations.take_rows(trace.check_names(trace.annotations, naming.stage_name))
    if len(found):
        names = trace.map_names(found, naming.stage_name)
        paths: dict[int, str] = {}
        for index, parent in walk_down(trace.nest_events(found)):
            # a stage inside another is a part of it: its path begins with the other's
            above = paths.get(parent, names[index])
            paths[index] = f"{above}.{names[index]}" if above != names[index] else above
        whole = [paths[i] for i in range(len(found))]
        return make_intervals(trace, found, whole, {}, "annotations", find_recomputed(engine, found))
    texts = [modules.paths[code] for code in modules.path.tolist()]
    chosen = np.array([bool(path) and "." not in path for path in texts], bool)
    if not chosen.any() or ROOT not in modules.paths:
        return make_intervals(trace, join_columns(), [], {}, "")
    paths_chosen = [path for path, good in zip(texts, chosen.tolist(), strict=True) if good]
    children, direction = modules.intervals.take_rows(chosen), modules.direction[chosen]
    return make_intervals(trace, children, paths_chosen, {}, "the root's children", direction)


def find_recomputed(engine: NestedIntervals, intervals: EventColumns) -> Numbers:
    """The direction of forward code: what begins while the autograd engine runs a node is run again."""
    around = engine.find_innermost(intervals.thread, intervals.start_ns)
    return np.where(around == NOBODY, IN_FORWARD, IN_RECOMPUTE)


def walk_down(nest: NestedIntervals) -> list[tuple[int, int]]:
    """Every interval with the one around it, the outer ones first."""
    order = np.argsort(nest.depth, kind="stable")
    return list(zip(order.tolist(), nest.find_parents()[order].tolist(), strict=True))


def _read_own(trace: TraceEvents, role: str) -> ModuleIntervals:
    found = trace.own[role]
    parted = trace.map_names(found, naming.without_direction)
    # the root is drawn with its type for a name; attributes do not begin with a capital
    paths = [ROOT if name[:1].isupper() and "." not in name else name for name, _ in parted]
    directions = np.array([DIRECTIONS.index(direction) for _, direction in parted], np.int64)
    return make_intervals(trace, found, paths, {}, "detscope's own trace", directions)


def make_intervals(
    trace: TraceEvents,
    found: EventColumns,
    paths: list[str],
    types: dict[str, str],
    made_of: str,
    direction: Numbers | None = None,
) -> ModuleIntervals:
    """Intervals with their paths, nested."""
    nest, numbers = trace.nest_events(found), ValueNumbers()
    codes = np.array([numbers[path] for path in paths], np.int64)
    if direction is None:
        direction = np.zeros(len(found), np.int64)
    return ModuleIntervals(found, codes, list(numbers), types, direction, nest, nest.find_parents(), made_of)

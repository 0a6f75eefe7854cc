"""Modules and stages: intervals with a path, from whatever a trace tells about them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detscope.ingest.kineto import naming
from detscope.ingest.kineto.columns import EventColumns, Flags, ValueNumbers, join_columns
from detscope.ingest.kineto.nesting import NOBODY, NestedIntervals, Numbers, take_values
from detscope.ingest.kineto.trace import TraceEvents

ROOT = ""


@dataclass(frozen=True)
class ModuleIntervals:
    """Intervals of modules, or of stages, each with its path."""

    intervals: EventColumns
    path: Numbers  # into `paths`
    paths: list[str]
    types: dict[str, str]
    is_backward: Flags
    nest: NestedIntervals
    parents: Numbers
    made_of: str

    def __len__(self) -> int:
        return len(self.intervals)

    def find_path(self, threads: NDArray[np.integer], times_ns: Numbers) -> Numbers:
        """The path of the innermost interval around each moment on a thread, or `NOBODY`."""
        return take_values(self.path, self.nest.find_innermost(threads, times_ns))


def find_modules(trace: TraceEvents) -> ModuleIntervals:
    """Modules by Python events, by detscope's own trace, or by annotations that spell a path."""
    if "own module" in trace.own:
        return _read_own(trace, "own module")
    python = trace.python.take_rows(trace.check_names(trace.python, naming.MODULE_EVENT.search))
    if len(python):  # paths of types and numbers ("Encoder_0.Linear_2"): it does not have attribute names
        labels = trace.map_names(python, lambda name: name.partition("nn.Module: ")[2])
        walk = _walk_down(trace.nest_events(python))
        one_root = len({labels[index] for index, parent in walk if parent == NOBODY}) == 1
        paths: dict[int, str] = {}
        types: dict[str, str] = {}
        for index, parent in walk:
            above = "" if parent == NOBODY else paths[parent]
            path = f"{above}.{labels[index]}" if above else labels[index]
            paths[index] = path = ROOT if parent == NOBODY and one_root else path
            types[path] = labels[index].rpartition("_")[0] or labels[index]
        whole = [paths[i] for i in range(len(python))]
        return _make_intervals(trace, python, whole, types, "nn.Module events")
    spelled = trace.annotations.take_rows(trace.check_names(trace.annotations, naming.module_path))
    names = trace.map_names(spelled, lambda name: naming.module_path(name) or (ROOT, ""))
    made_of = "annotations" if names else ""
    return _make_intervals(trace, spelled, [path for path, _ in names], dict(names), made_of)


def find_stages(trace: TraceEvents, modules: ModuleIntervals) -> ModuleIntervals:
    """Stages by detscope's own trace, by annotations that name one, else the root's direct children."""
    if "own stage" in trace.own:
        return _read_own(trace, "own stage")
    found = trace.annotations.take_rows(trace.check_names(trace.annotations, naming.stage_name))
    if len(found):
        names = trace.map_names(found, naming.stage_name)
        paths: dict[int, str] = {}
        for index, parent in _walk_down(trace.nest_events(found)):
            # a stage inside another is a part of it: its path begins with the other's
            above = paths.get(parent, names[index])
            paths[index] = f"{above}.{names[index]}" if above != names[index] else above
        return _make_intervals(trace, found, [paths[i] for i in range(len(found))], {}, "annotations")
    texts = [modules.paths[code] for code in modules.path.tolist()]
    chosen = np.array([bool(path) and "." not in path for path in texts], bool)
    if not chosen.any() or ROOT not in modules.paths:
        return _make_intervals(trace, join_columns(), [], {}, "")
    paths_chosen = [path for path, good in zip(texts, chosen.tolist(), strict=True) if good]
    children = modules.intervals.take_rows(chosen)
    return _make_intervals(trace, children, paths_chosen, {}, "the root's children")


def _walk_down(nest: NestedIntervals) -> list[tuple[int, int]]:
    """Every interval with the one around it, the outer ones first."""
    order = np.argsort(nest.depth, kind="stable")
    return list(zip(order.tolist(), nest.find_parents()[order].tolist(), strict=True))


def _read_own(trace: TraceEvents, role: str) -> ModuleIntervals:
    found = trace.own[role]
    parted = trace.map_names(found, naming.without_direction)
    # the root is drawn with its type for a name; attributes do not begin with a capital
    paths = [ROOT if name[:1].isupper() and "." not in name else name for name, _ in parted]
    backward = np.array([direction != "forward" for _, direction in parted], bool)
    return _make_intervals(trace, found, paths, {}, "detscope's own trace", backward)


def _make_intervals(
    trace: TraceEvents,
    found: EventColumns,
    paths: list[str],
    types: dict[str, str],
    made_of: str,
    backward: Flags | None = None,
) -> ModuleIntervals:
    nest, numbers = trace.nest_events(found), ValueNumbers()
    codes = np.array([numbers[path] for path in paths], np.int64)
    if backward is None:
        backward = np.zeros(len(found), bool)
    return ModuleIntervals(found, codes, list(numbers), types, backward, nest, nest.find_parents(), made_of)

"""Steps, modules and stages of a trace as the tables a measured run has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import polars as pl

from detscope.ingest.kineto.attribution import DIRECTIONS, TraceAttribution
from detscope.ingest.kineto.modules import ModuleIntervals
from detscope.ingest.kineto.nesting import NOBODY, Numbers, self_times, take_values
from detscope.ingest.kineto.steps import BACKWARD, FORWARD, PHASES
from detscope.ingest.kineto.tables import make_texts

# step, kind, path, direction -> calls, total, self, device total, device self
Sums = dict[tuple[int, str, str, str], list[int]]
_KEYS = ("step", "kind", "path", "direction")
_FIGURES = ("calls", "total_ns", "self_ns", "device_total_ns", "device_self_ns")
_TYPES = dict.fromkeys(_KEYS, pl.String) | dict.fromkeys(("step", *_FIGURES), pl.Int64)


def make_step_frame(found: TraceAttribution) -> pl.DataFrame:
    """Table `steps`: each step whole, and its phases, which add up to it."""
    rows = [
        (number, "recorded", phase, start + found.offset_ns, wall, 0)
        for number, start, end in _walk_steps(found)
        for phase, wall in zip(
            ("step", *PHASES), (end - start, *found.phases.sum_between(start, end).tolist()), strict=True
        )
    ]
    types = dict.fromkeys(("step", "mode", "phase", "start_ns", "wall_ns", "epoch"), pl.Int64)
    return pl.DataFrame(rows, schema=types | {"mode": pl.String, "phase": pl.String}, orient="row")


def _walk_steps(found: TraceAttribution) -> Iterator[tuple[int, int, int]]:
    steps = found.steps
    return zip(steps.numbers.tolist(), steps.starts_ns.tolist(), steps.ends_ns.tolist(), strict=True)


def make_node_frame(found: TraceAttribution) -> pl.DataFrame:
    """Table `nodes`: what the paths of `spans` are."""
    modules, stages = found.modules, found.stages
    inside = stages.find_path(modules.intervals.thread, modules.intervals.start_ns)
    stage_of = {
        modules.paths[code]: stages.paths[stage] if stage != NOBODY else ""
        for code, stage in zip(modules.path.tolist(), inside.tolist(), strict=True)
    }
    rows = [("module", path, modules.types.get(path, ""), stage_of[path]) for path in sorted(stage_of)]
    return pl.DataFrame(
        rows, schema=dict.fromkeys(("kind", "path", "type", "stage"), pl.String), orient="row"
    )


def make_span_frame(found: TraceAttribution) -> pl.DataFrame:
    """Table `spans`; self times of modules, stages' own code and the rest add up to the phase."""
    sums: Sums = defaultdict(lambda: [0] * 5)
    if len(found.modules) or len(found.stages):
        _add_intervals(sums, found, found.modules, "module")
        _add_intervals(sums, found, found.stages, "stage")
        places = (
            ("module", found.module, found.modules.paths),
            ("stage", found.stage, found.stages.paths),
        )
        if not found.has_own_backward:  # then it is what the autograd engine ran for a module's nodes
            operators, top = found.trace.operators, found.is_top_backward
            step = found.steps.find_number(operators.start_ns[top])
            for kind, codes, paths in places:
                for number, path, total, calls in _sum_walls(step, codes[top], paths, operators.wall_ns[top]):
                    entry = sums[number, kind, path, "backward"]
                    entry[0], entry[2] = calls, entry[2] + total
                    for above in _with_ancestors(path):
                        sums[number, kind, above, "backward"][1] += total
        # kernel time by the place that launched it
        kernels = found.is_kernel
        operator, walls = found.launch_operator[kernels], found.trace.device.wall_ns[kernels]
        step = found.steps.find_number(found.launch_moments[kernels])
        direction = take_values(found.direction, operator)
        for kind, codes, paths in places:
            here = take_values(codes, operator)
            for which, name in enumerate(DIRECTIONS):
                chosen = direction == which
                for number, path, total, _ in _sum_walls(step[chosen], here[chosen], paths, walls[chosen]):
                    sums[number, kind, path, name][4] += total
                    for above in _with_ancestors(path):
                        sums[number, kind, above, name][3] += total
        _add_rest(sums, found)
    rows = [(*key, *values) for key, values in sums.items()]
    frame = pl.DataFrame(rows, schema={name: _TYPES[name] for name in (*_KEYS, *_FIGURES)}, orient="row")
    if len(found.trace.device):
        return frame
    return frame.with_columns(pl.lit(None, pl.Int64).alias(name) for name in _FIGURES[3:])


def _add_intervals(sums: Sums, found: TraceAttribution, places: ModuleIntervals, kind: str) -> None:
    intervals = places.intervals
    frame = pl.DataFrame(
        {
            "step": found.steps.find_number(intervals.start_ns),
            "path": make_texts(places.paths, places.path),
            "backward": places.is_backward,
            "total": intervals.wall_ns,
            "self": self_times(intervals.wall_ns, places.parents),
        }
    ).filter(pl.col("step") >= 0)
    grouped = frame.group_by("step", "path", "backward", maintain_order=True).agg(
        pl.len().alias("calls"), pl.col("total").sum(), pl.col("self").sum()
    )
    for step, path, backward, calls, total, own in grouped.iter_rows():
        sums[step, kind, path, "backward" if backward else "forward"][:3] = [calls, total, own]


def _sum_walls(
    step: Numbers, codes: Numbers, paths: list[str], walls: Numbers
) -> Iterator[tuple[int, str, int, int]]:
    """Step, path, time and number of what lies in a step and has a path."""
    frame = pl.DataFrame({"step": step, "code": codes, "wall": walls})
    known = frame.filter((pl.col("step") >= 0) & (pl.col("code") >= 0))
    grouped = known.group_by("step", "code", maintain_order=True).agg(pl.col("wall").sum(), calls=pl.len())
    for number, code, total, calls in grouped.iter_rows():
        yield number, paths[code], total, calls


def _with_ancestors(path: str) -> list[str]:
    """A path, what is above it, and the root."""
    if not path:
        return [path]
    parts = path.split(".")
    return ["", *(".".join(parts[: depth + 1]) for depth in range(len(parts)))]


def _add_rest(sums: Sums, found: TraceAttribution) -> None:
    """What no module owns: a stage's own code as a region, modules without a stage, the rest of a phase."""
    module_self = _sum_module_self(found)
    spans: dict[tuple[int, str], list[tuple[str, str, int]]] = defaultdict(list)
    for (step, kind, path, direction), values in sums.items():
        spans[step, direction].append((kind, path, values[2]))
    for step, start, end in _walk_steps(found):
        within = found.phases.sum_between(start, end)
        for direction, phase in (("forward", FORWARD), ("backward", BACKWARD)):
            mine = spans.get((step, direction), [])
            owned = sum(own for kind, _, own in mine if kind == "module")
            for kind, path, own in mine:
                rest = own - module_self.get((step, path, direction), 0)
                if kind == "stage" and rest > 0:
                    sums[step, "region", path, direction][1:3] = [rest, rest]
                    owned += rest
            if homeless := module_self.get((step, "", direction), 0):
                sums[step, "stage", "", direction][2] += homeless
            left = int(within[phase]) - owned
            if left > 0:
                sums[step, "outside", "", direction][1:3] = [left, left]


def _sum_module_self(found: TraceAttribution) -> dict[tuple[int, str, str], int]:
    """Self time of modules by step, stage and direction; "" is no stage."""
    modules, operators = found.modules, found.trace.operators
    intervals = modules.intervals
    own = self_times(intervals.wall_ns, modules.parents)
    stage = found.stages.find_path(intervals.thread, intervals.start_ns)
    parts = [
        (direction, intervals.start_ns[chosen], stage[chosen], own[chosen])
        for direction, chosen in (("forward", ~modules.is_backward), ("backward", modules.is_backward))
    ]
    if not found.has_own_backward:
        top = found.is_top_backward & (found.module >= 0)
        parts.append(("backward", operators.start_ns[top], found.stage[top], operators.wall_ns[top]))
    sums: dict[tuple[int, str, str], int] = defaultdict(int)
    names = ["", *found.stages.paths]
    for direction, times_ns, codes, walls in parts:
        step = found.steps.find_number(times_ns)
        for number, path, total, _ in _sum_walls(step, codes + 1, names, walls):
            sums[number, path, direction] += total
    return sums

"""Steps, modules and stages of a trace as the tables a measured run has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import polars as pl

from detscope.ingest.kineto.launches import DIRECTIONS
from detscope.ingest.kineto.modules import Places
from detscope.ingest.kineto.names import DEVICE_ROLES
from detscope.ingest.kineto.nesting import NOBODY, Numbers, pick, self_times
from detscope.ingest.kineto.phases import BACKWARD, FORWARD, phase_of_step_rows
from detscope.ingest.kineto.tables import Picture, strings

OUTSIDE = "(outside)"
# step, kind, path, direction -> calls, total, self, device total, device self
Sums = dict[tuple[int, str, str, str], list[int]]


def step_frame(picture: Picture) -> pl.DataFrame:
    """Table `steps`."""
    rows = phase_of_step_rows(picture.steps, picture.phases)
    frame = pl.DataFrame(rows, schema_overrides={"step": pl.Int64, "start_ns": pl.Int64, "wall_ns": pl.Int64})
    return frame.with_columns(pl.lit(0, pl.Int64).alias("epoch"), pl.col("start_ns") + picture.offset_ns)


def node_frame(picture: Picture) -> pl.DataFrame:
    """Table `nodes`: what the paths of `spans` are."""
    modules, stages = picture.modules, picture.stages
    used = sorted({modules.paths[code] for code in np.unique(modules.path).tolist()})
    inside = stages.nest.innermost(modules.intervals.thread, modules.intervals.start_ns)
    stage_of = dict(zip(modules.path.tolist(), pick(stages.path, inside).tolist(), strict=True))
    code_of = {path: code for code, path in enumerate(modules.paths)}
    return pl.DataFrame(
        {
            "kind": ["module"] * len(used),
            "path": used,
            "type": [modules.types.get(path, "") for path in used],
            "stage": [
                stages.paths[code] if (code := stage_of.get(code_of[path], NOBODY)) >= 0 else ""
                for path in used
            ],
        },
        schema_overrides={"path": pl.String, "type": pl.String, "stage": pl.String, "kind": pl.String},
    )


def span_frame(picture: Picture) -> pl.DataFrame:
    """Table `spans`; self times of modules, stages' own code and the rest add up to the phase."""
    sums: Sums = defaultdict(lambda: [0] * 5)
    if len(picture.modules) or len(picture.stages):
        _add_intervals(sums, picture, picture.modules, "module")
        _add_intervals(sums, picture, picture.stages, "stage")
        if not picture.modules.direction_backward.any():
            _add_backward(sums, picture)
        _add_device(sums, picture)
        _add_rest(sums, picture)
    columns = ("step", "kind", "path", "direction")
    names = ("calls", "total_ns", "self_ns", "device_total_ns", "device_self_ns")
    rows = [(*key, *values) for key, values in sums.items()]
    types = dict.fromkeys(("step", *names), pl.Int64) | dict.fromkeys(columns[1:], pl.String)
    frame = pl.DataFrame(rows, schema={name: types[name] for name in (*columns, *names)}, orient="row")
    if len(picture.scene.device):
        return frame
    nothing = [pl.lit(None, pl.Int64).alias(name) for name in names[3:]]
    return frame.with_columns(nothing)


def _add_intervals(sums: Sums, picture: Picture, places: Places, kind: str) -> None:
    found = places.intervals
    frame = pl.DataFrame(
        {
            "step": pick(picture.steps.numbers, picture.steps.at(found.start_ns)),
            "path": strings(places.paths, places.path),
            "backward": places.direction_backward,
            "total": found.wall_ns,
            "self": self_times(found.wall_ns, places.parents),
        },
        schema_overrides={"path": pl.String},
    ).filter(pl.col("step") >= 0)
    grouped = frame.group_by("step", "path", "backward", maintain_order=True).agg(
        pl.len().alias("calls"), pl.col("total").sum(), pl.col("self").sum()
    )
    for step, path, backward, calls, total, own in grouped.iter_rows():
        entry = sums[step, kind, path, "backward" if backward else "forward"]
        entry[0], entry[1], entry[2] = calls, total, own


def _add_backward(sums: Sums, picture: Picture) -> None:
    """Backward has no intervals of its own: it is what the autograd engine ran for a module's nodes."""
    operators, places = picture.scene.operators, picture.places
    top = (picture.nest.depth == 0) & (places.direction == DIRECTIONS.index("backward"))
    step = pick(picture.steps.numbers, picture.steps.at(operators.start_ns[top]))
    for kind, codes, paths in (
        ("module", places.module[top], picture.modules.paths),
        ("stage", places.stage[top], picture.stages.paths),
    ):
        for number, path, total, calls in _grouped(step, codes, paths, operators.wall_ns[top]):
            entry = sums[number, kind, path, "backward"]
            entry[0], entry[2] = calls, entry[2] + total
            for above in _with_ancestors(path):
                sums[number, kind, above, "backward"][1] += total


def _add_device(sums: Sums, picture: Picture) -> None:
    """Kernel time by the place that launched it."""
    device, operator = picture.scene.device, picture.launches.operator
    moment = np.where(
        picture.launches.runtime >= 0,
        pick(picture.scene.runtime.start_ns, picture.launches.runtime),
        device.start_ns,
    )
    kernels = (device.value("kind") == DEVICE_ROLES.index("kernel")) & (operator >= 0)
    step = pick(picture.steps.numbers, picture.steps.at(moment[kernels]))
    direction = pick(picture.places.direction, operator[kernels])
    for kind, codes, paths in (
        ("module", picture.places.module, picture.modules.paths),
        ("stage", picture.places.stage, picture.stages.paths),
    ):
        here = pick(codes, operator[kernels])
        for which, name in enumerate(DIRECTIONS):
            chosen = direction == which
            walls = device.wall_ns[kernels][chosen]
            for number, path, total, _ in _grouped(step[chosen], here[chosen], paths, walls):
                sums[number, kind, path, name][4] += total
                for above in _with_ancestors(path):
                    sums[number, kind, above, name][3] += total


def _grouped(
    step: Numbers, codes: Numbers, paths: list[str], walls: Numbers
) -> Iterator[tuple[int, str, int, int]]:
    frame = pl.DataFrame({"step": step, "code": codes, "wall": walls})
    known = frame.filter((pl.col("step") >= 0) & (pl.col("code") >= 0))
    for number, code, total, calls in (
        known.group_by("step", "code", maintain_order=True)
        .agg(pl.col("wall").sum(), pl.len().alias("calls"))
        .iter_rows()
    ):
        yield number, paths[code], total, calls


def _with_ancestors(path: str) -> list[str]:
    """A path, what is above it, and the root."""
    if not path:
        return [path]
    parts = path.split(".")
    return ["", *(".".join(parts[: depth + 1]) for depth in range(len(parts)))]


def _add_rest(sums: Sums, picture: Picture) -> None:
    """What no module owns: a stage's own code as a region, modules without a stage, the rest of a phase."""
    stage_of_module = _module_self_by_stage(picture)
    spans: dict[tuple[int, str], list[tuple[str, str, int]]] = defaultdict(list)
    for (step, kind, path, direction), values in sums.items():
        spans[step, direction].append((kind, path, values[2]))
    for step, start, end in zip(
        picture.steps.numbers.tolist(),
        picture.steps.starts_ns.tolist(),
        picture.steps.ends_ns.tolist(),
        strict=True,
    ):
        within = picture.phases.within(start, end)
        for direction, phase in (("forward", FORWARD), ("backward", BACKWARD)):
            mine = spans.get((step, direction), [])
            owned = sum(own for kind, _, own in mine if kind == "module")
            for kind, path, own in mine:
                rest = own - stage_of_module.get((step, path, direction), 0)
                if kind == "stage" and rest > 0:
                    sums[step, "region", path, direction][1:3] = [rest, rest]
                    owned += rest
            homeless = stage_of_module.get((step, "", direction), 0)
            if homeless:
                sums[step, "stage", "", direction][2] += homeless
            left = int(within[phase]) - owned
            if left > 0:
                sums[step, "outside", "", direction][1:3] = [left, left]


def _module_self_by_stage(picture: Picture) -> dict[tuple[int, str, str], int]:
    """Self time of modules in each stage; "" is no stage."""
    modules, stages = picture.modules, picture.stages
    found: dict[tuple[int, str, str], int] = defaultdict(int)
    intervals = modules.intervals
    inside = stages.nest.innermost(intervals.thread, intervals.start_ns)
    step = pick(picture.steps.numbers, picture.steps.at(intervals.start_ns))
    own = self_times(intervals.wall_ns, modules.parents)
    names = ["", *stages.paths]
    for backward, direction in ((False, "forward"), (True, "backward")):
        chosen = modules.direction_backward == backward
        codes = pick(stages.path, inside)[chosen] + 1
        for number, path, total, _ in _grouped(step[chosen], codes, names, own[chosen]):
            found[number, path, direction] += total
    if not modules.direction_backward.any():
        places, operators = picture.places, picture.scene.operators
        top = (picture.nest.depth == 0) & (places.direction == 1) & (places.module >= 0)
        numbers = pick(picture.steps.numbers, picture.steps.at(operators.start_ns[top]))
        for number, path, total, _ in _grouped(numbers, places.stage[top] + 1, names, operators.wall_ns[top]):
            found[number, path, "backward"] += total
    return dict(found)

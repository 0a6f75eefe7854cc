"""Events, attributed, as rows of the tables of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from detscope.runs.standard_json import as_plain_text
from detscope.runs.writer import polars_schema
from detscope.traces import naming
from detscope.traces.attribution import TraceAttribution
from detscope.traces.columns import EventColumns, Flags, TraceEvents
from detscope.traces.nesting import NOBODY, Numbers, self_times, take_values
from detscope.traces.places import DIRECTIONS, IN_BACKWARD, IN_RECOMPUTE, ModuleIntervals
from detscope.traces.steps import BACKWARD, FORWARD, PHASES, TracePhases, TraceSteps

_KEYS = ["step", "kind", "path", "direction"]
_FIGURES = ("calls", "total_ns", "self_ns", "device_total_ns", "device_self_ns")
_TYPES = {"step": pl.Int64, **dict.fromkeys(_KEYS[1:], pl.String), **dict.fromkeys(_FIGURES, pl.Int64)}

_NONE = np.empty(0, np.int64)
_FEW = 1000  # below it, plain lists are faster than the tables library


def complete_columns(table: str, frame: pl.DataFrame, rank: int) -> pl.DataFrame:
    """Rows of a table of the schema: what is missing is null, `rank` is the one given."""
    schema = polars_schema(table)
    if unknown := set(frame.columns) - set(schema):
        raise ValueError(f"table {table!r} has no column {', '.join(sorted(unknown))}")
    return frame.select(
        pl.col(name).cast(dtype, strict=False)
        if name in frame.columns
        else pl.lit(rank if name == "rank" else None, dtype=dtype).alias(name)
        for name, dtype in schema.items()
    )


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
    again, frames = _find_run_again(found), []
    work, of_device = found.trace.is_work, found.device_places
    for kind, places, codes, device_codes in (
        ("module", found.modules, found.module, of_device.module),
        ("stage", found.stages, found.stage, of_device.stage),
    ):
        if not len(places):
            continue
        frames += _sum_intervals(found, kind, places, again)
        # the backward pass of a module is what the autograd engine ran for its nodes
        starts, here = found.trace.operators.start_ns[again.tops], codes[again.tops]
        figures = {"calls": np.ones(len(here), np.int64), "self_ns": again.top_walls}
        own = _sum_places(found, kind, starts, places.paths, here, IN_BACKWARD, figures)
        frames += [own, _add_to_ancestors(own, "self_ns", "total_ns")]
        # what runs on the device, by who queued it
        moments, directions = found.launch_moments[work], of_device.direction[work]
        figures = {"device_self_ns": found.trace.device.wall_ns[work]}
        own = _sum_places(found, kind, moments, places.paths, device_codes[work], directions, figures)
        frames += [own, _add_to_ancestors(own, "device_self_ns", "device_total_ns")]
    if not frames:
        return pl.DataFrame(schema=_TYPES)
    spans = _sum_rows(frames)
    spans = _sum_rows([spans, *_find_rest(found, spans, again)])
    if len(found.trace.device):
        return spans
    return spans.with_columns(pl.lit(None, pl.Int64).alias(name) for name in _FIGURES[3:])


@dataclass(frozen=True)
class _RunAgain:
    """The engine's outermost operators, and modules that run forward again inside of them."""

    tops: Numbers
    top_walls: Numbers  # without what runs again inside
    places: ModuleIntervals  # modules; stages where no module is known
    stage: Numbers  # of each of them
    outermost: Flags  # those that run again, inside of no other such


def _find_run_again(found: TraceAttribution) -> _RunAgain:
    operators, places = found.trace.operators, found.modules if len(found.modules) else found.stages
    intervals, again = places.intervals, places.direction == IN_RECOMPUTE
    stage = found.stages.find_path(intervals.thread, intervals.start_ns)
    if found.modules.has_backward:  # then it has intervals of its own, and the engine need not be asked
        return _RunAgain(_NONE, _NONE, places, stage, np.zeros(len(places), bool))
    tops, walls = np.flatnonzero(found.is_top_backward), operators.wall_ns.copy()
    inside = found.nest.find_among(tops, intervals.thread, intervals.start_ns)
    stage = np.where(again & (stage == NOBODY), take_values(found.stage, inside), stage)
    outermost = again & (take_values(again, places.parents, 0) == 0) & (inside != NOBODY)
    np.subtract.at(walls, inside[outermost], intervals.wall_ns[outermost])
    return _RunAgain(tops, np.maximum(walls[tops], 0), places, stage, outermost)


def _sum_intervals(
    found: TraceAttribution, kind: str, places: ModuleIntervals, again: _RunAgain
) -> list[pl.DataFrame]:
    """The intervals of modules or stages; what of a stage runs again is what its modules run again."""
    intervals, own = places.intervals, places is again.places
    figures = {
        "calls": np.ones(len(places), np.int64),
        "total_ns": np.where(again.outermost, 0, intervals.wall_ns) if own else intervals.wall_ns,
        "self_ns": self_times(intervals.wall_ns, places.parents),
    }
    kept = np.flatnonzero((places.direction != IN_RECOMPUTE) | own | found.modules.has_backward)
    figures = {name: values[kept] for name, values in figures.items()}
    starts, directions = intervals.start_ns[kept], places.direction[kept]
    rows = _sum_places(found, kind, starts, places.paths, places.path[kept], directions, figures)
    # it has nothing around it that would count it to the parts above
    outer = again.places.intervals.take_rows(again.outermost)
    codes = (places.path if own else again.stage)[again.outermost]
    more = _sum_places(
        found, kind, outer.start_ns, places.paths, codes, IN_RECOMPUTE, {"self_ns": outer.wall_ns}
    )
    return [rows, _add_to_ancestors(more, "self_ns", "total_ns"), more.clear() if own else more]


def _sum_places(
    found: TraceAttribution,
    kind: str,
    times_ns: Numbers,
    paths: list[str],
    codes: Numbers,
    directions: Numbers | int,
    figures: dict[str, Numbers],
) -> pl.DataFrame:
    """One row per step, path and direction; what lies in no step or has no path is left out."""
    about = {"step": found.steps.find_number(times_ns), "code": codes}
    about["direction"] = np.broadcast_to(np.asarray(directions, np.int64), len(codes))
    frame = pl.DataFrame({**about, **figures}).filter((pl.col("step") >= 0) & (pl.col("code") >= 0))
    summed = frame.group_by(list(about), maintain_order=True).agg(pl.col(list(figures)).sum())
    return summed.select(
        "step",
        pl.lit(kind).alias("kind"),
        make_texts(paths, summed["code"].to_numpy()).alias("path"),
        make_texts(list(DIRECTIONS), summed["direction"].to_numpy()).alias("direction"),
        *figures,
    )


def _sum_rows(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Rows of the same step, kind, path and direction as one; a figure that none of them has is 0."""
    whole = pl.concat([pl.DataFrame(schema=_TYPES), *frames], how="diagonal_relaxed")
    return whole.group_by(_KEYS, maintain_order=True).agg(pl.col(_FIGURES).sum())


def _add_to_ancestors(rows: pl.DataFrame, own: str, whole: str) -> pl.DataFrame:
    """A figure of each path as part of the whole of the path, of what is above it, and of the root."""
    paths = rows["path"].unique().to_list()
    parts = [path.split(".") if path else [] for path in paths]
    chains = [["", *(".".join(one[: depth + 1]) for depth in range(len(one)))] for one in parts]
    above = pl.DataFrame(
        {"path": paths, "above": chains}, schema={"path": pl.String, "above": pl.List(pl.String)}
    )
    spread = rows.join(above.explode("above"), on="path", maintain_order="left")
    return spread.select("step", "kind", pl.col("above").alias("path"), "direction", pl.col(own).alias(whole))


def _find_rest(found: TraceAttribution, spans: pl.DataFrame, again: _RunAgain) -> Iterator[pl.DataFrame]:
    """What no module owns: a stage's own code as a region, modules without a stage, the rest of a phase."""
    modules = found.modules
    stages, own = ["", *found.stages.paths], self_times(modules.intervals.wall_ns, modules.parents)
    stage = again.stage if again.places is modules else _NONE
    tops = again.tops[found.module[again.tops] >= 0]
    top_walls = again.top_walls[found.module[again.tops] >= 0]
    parts = (
        (modules.intervals.start_ns, stage, modules.direction, own),
        (found.trace.operators.start_ns[tops], found.stage[tops], IN_BACKWARD, top_walls),
    )
    inside = _sum_rows(
        [
            _sum_places(found, "stage", times, stages, codes + 1, directions, {"self_ns": walls})
            for times, codes, directions, walls in parts
        ]
    ).select(*_KEYS, of_modules="self_ns")
    yield inside.filter(pl.col("path") == "").select(*_KEYS, self_ns="of_modules")
    of_stages = spans.filter(pl.col("kind") == "stage").join(inside, on=_KEYS, how="left")
    rest = pl.col("self_ns") - pl.col("of_modules").fill_null(0)
    regions = of_stages.select("step", pl.lit("region").alias("kind"), "path", "direction", self_ns=rest)
    regions = regions.filter(pl.col("self_ns") > 0).with_columns(total_ns="self_ns")
    yield regions
    owned = pl.concat([spans.filter(pl.col("kind") == "module"), regions], how="diagonal_relaxed")
    in_phase = pl.when(pl.col("direction") == "forward").then(FORWARD).otherwise(BACKWARD)
    summed = owned.group_by("step", in_phase.alias("phase")).agg(pl.col("self_ns").sum())
    known = {(step, phase): total for step, phase, total in summed.iter_rows()}
    rows = []
    for step, start, end in _walk_steps(found):
        within = found.phases.sum_between(start, end)
        for direction, phase in (("forward", FORWARD), ("backward", BACKWARD)):
            left = int(within[phase]) - known.get((step, phase), 0)
            if left > 0:
                rows.append((step, "outside", "", direction, left, left))
    schema = {name: _TYPES[name] for name in (*_KEYS, "total_ns", "self_ns")}
    yield pl.DataFrame(rows, schema=schema, orient="row")


def make_texts(values: list[Any], codes: NDArray[np.integer]) -> pl.Series:
    """Texts by number; null for `NOBODY`. Many equal texts share their memory."""
    try:
        return _make_texts(values, codes)
    except UnicodeEncodeError:  # half of a character, which JSON can spell
        return _make_texts([as_plain_text(v) if isinstance(v, str) else v for v in values], codes)


def _make_texts(values: list[Any], codes: NDArray[np.integer]) -> pl.Series:
    if len(codes) < _FEW:
        return pl.Series([values[code] if code >= 0 else None for code in codes.tolist()], dtype=pl.String)
    return pl.Series(values, dtype=pl.String).gather(_make_numbers(codes).cast(pl.UInt32))


def _make_numbers(values: NDArray[np.generic]) -> pl.Series:
    """Integers; null for `NOBODY`."""
    whole = values.astype(np.int64)
    if len(whole) < _FEW:
        return pl.Series([value if value >= 0 else None for value in whole.tolist()], dtype=pl.Int64)
    column = pl.Series(whole)
    return column.set(column < 0, None) if (whole < 0).any() else column


def make_device_frame(found: TraceAttribution) -> pl.DataFrame:
    """Table `device_events`."""
    trace, device, places = found.trace, found.trace.device, found.device_places
    call, moment = found.launch_call, found.launch_moments
    launch_thread = take_values(trace.runtime.thread, call)
    copies = [naming.copy_direction(name) if name.startswith("Mem") else None for name in trace.names]
    is_copy = device.get_extra("kind") == naming.DEVICE_ROLES.index("copy")
    numbers = {name: device.get_extra(name) for name in ("device", "stream", "correlation", "bytes")}
    numbers |= {"launch_wall_ns": take_values(trace.runtime.wall_ns, call)}
    numbers |= {"launch_thread": _thread_numbers(trace, launch_thread)}
    numbers |= {"step": found.steps.find_number(moment)}
    texts: dict[str, tuple[list[Any], NDArray[np.integer]]] = {
        "kind": (list(naming.DEVICE_ROLES), device.get_extra("kind")),
        "name": (trace.names, device.name),
        "operator": (trace.names, take_values(trace.operators.name, found.launch_operator)),
        "module": (found.modules.paths, places.module),
        "direction": (list(DIRECTIONS), places.direction),
        "stage": (found.stages.paths, places.stage),
        "phase": (list(PHASES), places.phase),
        "copy": (copies, np.where(is_copy, device.name, NOBODY)),
    }
    columns: dict[str, Any] = {
        "start_ns": device.start_ns + found.offset_ns,
        "wall_ns": device.wall_ns,
        "launch_ns": pl.Series(moment + found.offset_ns).set(pl.Series(call == NOBODY), None),
        "communication": found.is_communication,
    }
    columns |= {name: _make_numbers(values) for name, values in numbers.items()}
    columns |= {name: make_texts(values, codes) for name, (values, codes) in texts.items()}
    for name in ("blocks_per_sm", "occupancy"):
        if name in device.extra:
            columns[name] = pl.Series(device.extra[name]).cast(pl.Float64).fill_nan(None)
    return pl.DataFrame(columns)


def _thread_numbers(trace: TraceEvents, codes: NDArray[np.integer], part: int = 1) -> Numbers:
    """Threads (or processes: part 0) as numbers; `NOBODY` for one that has only a name."""
    values = [pair[part] for pair in trace.threads]
    values = [int(v) if isinstance(v, str) and re.fullmatch("[0-9]{1,18}", v) else v for v in values]
    known = [v if isinstance(v, int) and abs(v) < 1 << 62 else NOBODY for v in values]
    return take_values(np.array(known, np.int64), codes.astype(np.int64))


def make_host_frames(found: TraceAttribution) -> list[pl.DataFrame]:
    """Table `host_events`, kind by kind."""
    trace, annotations, steps, phases = found.trace, found.trace.annotations, found.steps, found.phases
    loader = trace.check_names(annotations, naming.LOADER_MARK.search)
    plain = ~loader
    for test in (naming.STEP_MARK.search, naming.STEP_RANGE.search, naming.stage_name, naming.module_path):
        plain &= ~trace.check_names(annotations, test)
    operator_stack = np.full(len(trace.operators), NOBODY, np.int64)
    if len(trace.stacks) > 1 and "stack" in trace.operators.extra:
        codes, known = trace.operators.extra["stack"], np.array([bool(stack) for stack in trace.stacks])
        operator_stack = np.where(known[np.maximum(codes, 0)] & (codes >= 0), codes, NOBODY).astype(np.int64)
    operators = _make_frame(found, trace.operators, "operator").with_columns(
        sequence=_make_numbers(trace.operators.get_extra("sequence"))
    )
    runtime = _make_frame(found, trace.runtime, "runtime").with_columns(
        correlation=_make_numbers(trace.runtime.get_extra("correlation"))
    )
    stack_lines: list[str | None] = []
    if (operator_stack >= 0).any():
        stack_lines = [naming.innermost_user_line(stack) for stack in trace.stacks]
        operators = operators.with_columns(make_texts(stack_lines, operator_stack).alias("stack"))
    # the user's own line around each runtime call: from Python events, else from its operator
    if len(trace.python):
        own = trace.python.take_rows(trace.check_names(trace.python, naming.user_line))
        around = trace.nest_events(own).find_innermost(trace.runtime.thread, trace.runtime.start_ns)
        stack_lines, stack = [naming.user_line(name) for name in trace.names], take_values(own.name, around)
    elif stack_lines:
        around = found.nest.find_innermost(trace.runtime.thread, trace.runtime.start_ns)
        stack = take_values(operator_stack, around)
    if stack_lines:
        runtime = runtime.with_columns(make_texts(stack_lines, stack).alias("stack"))
    frames = [
        _make_stretches("step", pl.Series(steps.names, dtype=pl.String), steps, found.offset_ns),
        _make_stretches("phase", make_texts(list(PHASES), phases.labels), phases, found.offset_ns),
        *(
            _make_frame(found, places.intervals, kind).with_columns(
                name=make_texts(places.paths, places.path)
            )
            for kind, places in (("stage", found.stages), ("module", found.modules))
        ),
        operators,
        runtime,
        _make_frame(found, annotations.take_rows(loader), "loader"),
        _make_frame(found, annotations.take_rows(plain), "annotation"),
        _make_frame(found, trace.device_annotations, "device_annotation"),
    ]
    if "own loader" in trace.own:
        frames.append(_make_frame(found, trace.own["own loader"], "loader"))
    return [frame for frame in frames if frame.height]


def _make_frame(found: TraceAttribution, columns: EventColumns, kind: str) -> pl.DataFrame:
    frame = pl.DataFrame(
        {
            "process": _make_numbers(_thread_numbers(found.trace, columns.thread, part=0)),
            "thread": _make_numbers(_thread_numbers(found.trace, columns.thread)),
            "name": make_texts(found.trace.names, columns.name),
            "start_ns": columns.start_ns + found.offset_ns,
            "wall_ns": columns.wall_ns,
        }
    )
    return frame.with_columns(kind=pl.lit(kind))


def _make_stretches(
    kind: str, names: pl.Series, times: TraceSteps | TracePhases, offset_ns: int
) -> pl.DataFrame:
    walls = times.ends_ns - times.starts_ns
    frame = pl.DataFrame({"name": names, "start_ns": times.starts_ns + offset_ns, "wall_ns": walls})
    return frame.with_columns(kind=pl.lit(kind))


def make_operator_frame(found: TraceAttribution) -> pl.DataFrame:
    """Table `ops`: operators inside steps, or all where there are no steps."""
    trace, operators, device = found.trace, found.trace.operators, found.trace.device
    linked = found.is_linked
    time, count = np.zeros(len(operators), np.int64), np.zeros(len(operators), np.int64)
    np.add.at(time, found.launch_operator[linked], device.wall_ns[linked])
    np.add.at(count, found.launch_operator[linked], 1)
    texts: dict[str, tuple[list[Any], NDArray[np.integer]]] = {
        "name": (trace.names, operators.name),
        "module": (found.modules.paths, found.module),
        "stage": (found.stages.paths, found.stage),
        "phase": (list(PHASES), found.phase),
        "direction": (list(DIRECTIONS), found.direction),
        "shapes": (trace.shapes, np.maximum(operators.get_extra("shapes"), 0)),
    }
    frame = pl.DataFrame(
        {
            **{name: codes for name, (_, codes) in texts.items()},
            "total_ns": operators.wall_ns,
            "self_ns": self_times(operators.wall_ns, found.nest.find_parents()),
            "device_ns": time,
            "kernels": count,
            "inside": (found.steps.find_index(operators.start_ns) >= 0) | (len(found.steps) == 0),
        }
    ).filter("inside")
    grouped = frame.group_by(list(texts), maintain_order=True).agg(
        pl.len().alias("count"), pl.col("total_ns", "self_ns", "device_ns", "kernels").sum()
    )
    named = grouped.with_columns(
        make_texts(values, grouped[name].to_numpy()).alias(name) for name, (values, _) in texts.items()
    ).with_columns(pl.col("stage").fill_null(""))
    return named if len(device) else named.with_columns(pl.lit(None, pl.Int64).alias("device_ns"))

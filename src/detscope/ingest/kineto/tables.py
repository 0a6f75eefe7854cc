"""A trace's events, attributed, as rows of the tables of a run."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from detscope.ingest.kineto import naming
from detscope.ingest.kineto.attribution import (
    BACKWARD,
    DIRECTIONS,
    FORWARD,
    PHASES,
    ModuleIntervals,
    TraceAttribution,
    TracePhases,
    TraceSteps,
)
from detscope.ingest.kineto.events import CounterEvent
from detscope.ingest.kineto.nesting import NOBODY, Numbers, self_times, take_values
from detscope.ingest.kineto.trace import EventColumns, TraceEvents
from detscope.ingest.sink import Sink

# step, kind, path, direction -> calls, total, self, device total, device self
Sums = dict[tuple[int, str, str, str], list[int]]
_KEYS = ("step", "kind", "path", "direction")
_FIGURES = ("calls", "total_ns", "self_ns", "device_total_ns", "device_self_ns")
_TYPES = dict.fromkeys(_KEYS, pl.String) | dict.fromkeys(("step", *_FIGURES), pl.Int64)

_FEW = 1000  # below it, plain lists are faster than the tables library


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


def make_texts(values: list[Any], codes: NDArray[np.integer]) -> pl.Series:
    """Texts by number; null for `NOBODY`. Many equal texts share their memory."""
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
    trace, device = found.trace, found.trace.device
    call, operator = found.launch_call, found.launch_operator
    moment = found.launch_moments
    launch_thread = take_values(trace.runtime.thread, call)
    direction, phase = take_values(found.direction, operator), take_values(found.phase, operator)
    module, stage = take_values(found.module, operator), take_values(found.stage, operator)
    alone = (call != NOBODY) & (operator == NOBODY)  # launched outside of any operator: by time alone
    if alone.any():
        threads, times = launch_thread[alone], moment[alone]
        phase[alone] = found.phases.find_phase(times)
        module[alone] = found.modules.find_path(threads, times)
        stage[alone] = found.stages.find_path(threads, times)
        direction[alone] = np.where(phase[alone] == BACKWARD, 1, 0)
    copies = [naming.copy_direction(name) if name.startswith("Mem") else None for name in trace.names]
    is_copy = device.get_extra("kind") == naming.DEVICE_ROLES.index("copy")
    numbers = {name: device.get_extra(name) for name in ("device", "stream", "correlation", "bytes")}
    numbers |= {"launch_wall_ns": take_values(trace.runtime.wall_ns, call)}
    numbers |= {"launch_thread": _thread_numbers(trace, launch_thread)}
    numbers |= {"step": found.steps.find_number(moment)}
    texts: dict[str, tuple[list[Any], NDArray[np.integer]]] = {
        "kind": (list(naming.DEVICE_ROLES), device.get_extra("kind")),
        "name": (trace.names, device.name),
        "operator": (trace.names, take_values(trace.operators.name, operator)),
        "module": (found.modules.paths, module),
        "direction": (list(DIRECTIONS), direction),
        "stage": (found.stages.paths, stage),
        "phase": (list(PHASES), phase),
        "copy": (copies, np.where(is_copy, device.name, NOBODY)),
    }
    columns: dict[str, Any] = {
        "start_ns": device.start_ns + found.offset_ns,
        "wall_ns": device.wall_ns,
        "launch_ns": pl.Series(moment + found.offset_ns).set(pl.Series(call == NOBODY), None),
        "communication": trace.check_names(device, naming.COMMUNICATION.search),
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
    for test in (naming.STEP_MARK.search, naming.stage_name, naming.module_path):
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
    kernels = found.is_kernel
    time, count = np.zeros(len(operators), np.int64), np.zeros(len(operators), np.int64)
    np.add.at(time, found.launch_operator[kernels], device.wall_ns[kernels])
    np.add.at(count, found.launch_operator[kernels], 1)
    texts: dict[str, tuple[list[Any], NDArray[np.integer]]] = {
        "name": (trace.names, operators.name),
        "module": (found.modules.paths, found.module),
        "stage": (found.stages.paths, found.stage),
        "phase": (list(PHASES), found.phase),
        "direction": (list(DIRECTIONS), found.direction),
        "shapes": (
            [_shape_text(text) for text in trace.shapes],
            np.maximum(operators.get_extra("shapes"), 0),
        ),
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
        make_texts(values, grouped[name].to_numpy()).fill_null("").alias(name)
        for name, (values, _) in texts.items()
    )
    return named if len(device) else named.with_columns(pl.lit(None, pl.Int64).alias("device_ns"))


def _shape_text(text: bytes) -> str:
    """[[2, 3, 8], [], [4]] -> 2x3x8, 4"""
    inner = text.decode("ascii", "replace").replace(" ", "").replace("\n", "")
    shapes = [part.strip("[],") for part in inner.split("],")]
    return ", ".join(shape.replace(",", "x") for shape in shapes if shape)[:200]


def write_counters(sink: Sink, counters: list[CounterEvent]) -> None:
    """Counters of kernels, in order of time, as Nsight Compute's are kept."""
    ordered = sorted(counters, key=lambda event: event.ts or 0.0)
    rows = [
        (index, naming.scrub_homes(event.name or ""), metric, float(value))
        for index, event in enumerate(ordered)
        for metric, value in (event.args or {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    schema = {"kernel": pl.Int64, "name": pl.String, "metric": pl.String, "value": pl.Float64}
    sink.add_rows("kernel_metrics", pl.DataFrame(rows, schema=schema, orient="row"))


def write_memory(sink: Sink, trace: TraceEvents, offset_ns: int) -> None:
    """Allocations of a profile with memory: changes, and what the allocator reserved."""
    memory = trace.memory.take_rows(np.argsort(trace.memory.start_ns, kind="stable"))
    number = pl.Series(np.maximum(memory.get_extra("device_id"), 0)).cast(pl.String)
    frame = pl.DataFrame(
        {
            "time_ns": memory.start_ns + offset_ns,
            "delta_bytes": memory.get_extra("memory_bytes"),
            "bytes": memory.get_extra("reserved"),
            "on_cpu": memory.get_extra("device_type") == 0,
        }
    ).with_columns(
        device=pl.when("on_cpu").then(pl.lit("cpu")).otherwise(pl.lit("cuda:") + number),
        category=pl.lit("unknown"),
        level=pl.lit("reserved"),
    )
    sink.add_rows("memory_changes", frame.select("time_ns", "device", "category", "delta_bytes"))
    reserved = frame.filter((pl.col("bytes") >= 0) & ~pl.col("on_cpu"))
    sink.add_rows("memory_levels", reserved.select("time_ns", "device", "level", "bytes"))

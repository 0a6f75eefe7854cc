"""A trace's events, attributed, as rows of the tables of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from detscope.ingest.kineto.columns import Columns
from detscope.ingest.kineto.launches import (
    DIRECTIONS,
    Launches,
    OperatorPlaces,
    launches_a_transfer,
    link_launches,
    place_operators,
)
from detscope.ingest.kineto.modules import Places, find_modules, find_stages
from detscope.ingest.kineto.names import (
    COMMUNICATION,
    DEVICE_ROLES,
    LOADER_MARK,
    STEP_MARK,
    copy_direction,
    innermost_user_line,
    module_path,
    stage_name,
    user_line,
)
from detscope.ingest.kineto.nesting import NOBODY, Nest, Numbers, pick, self_times
from detscope.ingest.kineto.phases import BACKWARD, PHASES, Phases, find_phases
from detscope.ingest.kineto.scene import Scene
from detscope.ingest.kineto.steps import Steps, find_steps, main_thread

_FEW = 1000  # below it, plain lists are faster than the tables library


@dataclass(frozen=True)
class Picture:
    """Everything that was found out about a scene."""

    scene: Scene
    thread: int
    nest: Nest
    steps: Steps
    phases: Phases
    modules: Places
    stages: Places
    launches: Launches
    places: OperatorPlaces
    operator_phase: Numbers
    offset_ns: int = 0


def attribute(scene: Scene, offset_ns: int = 0) -> Picture:
    """Find steps, phases, modules and stages, and link the device's work to them."""
    operators = scene.operators
    thread = main_thread(scene) if not scene.own else 0
    nest = Nest(scene.axis, operators.thread, operators.start_ns, operators.wall_ns)
    steps, modules = find_steps(scene, thread), find_modules(scene)
    stages = find_stages(scene, modules)
    launches = link_launches(scene, nest)
    autograd = scene.backward
    places = place_operators(scene, nest, autograd, modules, stages)
    transfers = launches_a_transfer(scene, nest, launches, modules, stages)
    phases = find_phases(scene, thread, nest, autograd, transfers, modules, stages)
    operator_phase = np.where(places.direction > 0, BACKWARD, phases.at(operators.start_ns))
    # gradient hooks and the like run on the engine's threads between its own events
    engine = np.isin(operators.thread, np.setdiff1d(operators.thread[autograd], [thread]))
    places.direction[(operator_phase == BACKWARD) & (places.direction == 0) & engine] = 1
    return Picture(
        scene, thread, nest, steps, phases, modules, stages, launches, places, operator_phase, offset_ns
    )


def strings(values: list[Any], codes: NDArray[np.integer]) -> pl.Series:
    """Texts by number; null for `NOBODY`. Many equal texts share their memory."""
    if len(codes) < _FEW:
        return pl.Series([values[code] if code >= 0 else None for code in codes.tolist()], dtype=pl.String)
    return pl.Series(values, dtype=pl.String).gather(numbers(codes).cast(pl.UInt32))


def numbers(values: NDArray[np.generic]) -> pl.Series:
    """Integers; null for `NOBODY`."""
    whole = values.astype(np.int64)
    if len(whole) < _FEW:
        return pl.Series([value if value >= 0 else None for value in whole.tolist()], dtype=pl.Int64)
    column = pl.Series(whole)
    return column.set(column < 0, None) if (whole < 0).any() else column


def device_frame(picture: Picture) -> pl.DataFrame:
    """Table `device_events`."""
    scene, device, offset = picture.scene, picture.scene.device, picture.offset_ns
    call, operator = picture.launches.runtime, picture.launches.operator
    launch = pick(scene.runtime.start_ns, call, np.iinfo(np.int64).min)
    launch_wall = pick(scene.runtime.wall_ns, call)
    launch_thread = pick(scene.runtime.thread, call)
    launched = call != NOBODY
    moment = np.where(launched, launch, device.start_ns)
    step = pick(picture.steps.numbers, picture.steps.at(moment))
    direction = pick(picture.places.direction, operator)
    phase = pick(picture.operator_phase, operator)
    module, stage = pick(picture.places.module, operator), pick(picture.places.stage, operator)
    alone = launched & (operator == NOBODY)  # launched outside of any operator: by time alone
    if alone.any():
        threads, times = launch_thread[alone].astype(np.int32), moment[alone]
        phase[alone] = picture.phases.at(times)
        module[alone] = pick(picture.modules.path, picture.modules.nest.innermost(threads, times))
        stage[alone] = pick(picture.stages.path, picture.stages.nest.innermost(threads, times))
        direction[alone] = np.where(phase[alone] == BACKWARD, 1, 0)
    copies = [copy_direction(name) if name.startswith("Mem") else None for name in scene.names]
    is_copy = device.value("kind") == DEVICE_ROLES.index("copy")
    return pl.DataFrame(
        {
            "device": numbers(device.value("device")),
            "stream": numbers(device.value("stream")),
            "kind": strings(list(DEVICE_ROLES), device.value("kind")),
            "name": strings(scene.names, device.name),
            "start_ns": device.start_ns + offset,
            "wall_ns": device.wall_ns,
            "correlation": numbers(device.value("correlation")),
            "launch_ns": pl.Series(launch + offset).set(pl.Series(~launched), None),
            "launch_wall_ns": numbers(launch_wall),
            "launch_thread": _thread_numbers(scene, launch_thread),
            "operator": strings(scene.names, pick(scene.operators.name, operator)),
            "module": strings(picture.modules.paths, module),
            "direction": strings(list(DIRECTIONS), direction),
            "stage": strings(picture.stages.paths, stage),
            "phase": strings(list(PHASES), phase),
            "step": numbers(step),
            "bytes": numbers(device.value("bytes")),
            "copy": strings(copies, np.where(is_copy, device.name, NOBODY)),
            "communication": scene.matching(device, COMMUNICATION),
            "blocks_per_sm": _floats(device, "blocks_per_sm"),
            "occupancy": _floats(device, "occupancy"),
        }
    )


def _floats(device: Columns, name: str) -> pl.Series:
    if name not in device.extra:
        return pl.Series([None] * len(device), dtype=pl.Float64)
    return pl.Series(device.extra[name]).cast(pl.Float64).fill_nan(None)


def _thread_numbers(scene: Scene, codes: Numbers) -> pl.Series:
    return numbers(pick(_numbers_of([thread for _, thread in scene.threads]), codes))


def _numbers_of(values: list[Any]) -> Numbers:
    """Processes and threads as numbers; `NOBODY` for one that has only a name."""
    return np.array([_number_of(value) for value in values], np.int64)


def _number_of(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) and abs(value) < 1 << 62 else NOBODY


def host_frames(picture: Picture) -> list[pl.DataFrame]:
    """Table `host_events`, kind by kind."""
    scene = picture.scene
    annotations = scene.annotations
    loader = scene.matching(annotations, LOADER_MARK)
    marks = scene.flags(annotations, STEP_MARK.search)
    marks |= scene.flags(annotations, stage_name) | scene.flags(annotations, module_path)
    plain = ~loader & ~marks
    operators, runtime = scene.operators, scene.runtime
    operator_stack = _operator_stacks(scene)
    around = picture.nest.innermost(runtime.thread, runtime.start_ns)
    stack_lines, runtime_stack = _runtime_stacks(scene, around, operator_stack)
    frames = [
        _steps_frame(picture),
        _phases_frame(picture),
        _places_frame(picture, picture.stages, "stage"),
        _places_frame(picture, picture.modules, "module"),
        _frame(picture, operators, "operator", sequence=operators.value("sequence"), stack=operator_stack),
        _frame(picture, runtime, "runtime", correlation=runtime.value("correlation")),
        _frame(picture, annotations.take(loader), "loader"),
        _frame(picture, annotations.take(plain), "annotation"),
        _frame(picture, scene.device_annotations, "device_annotation"),
    ]
    if "own loader" in scene.own:
        frames.append(_frame(picture, scene.own["own loader"], "loader"))
    if stack_lines:
        frames[5] = frames[5].with_columns(strings(stack_lines, runtime_stack).alias("stack"))
    return [frame for frame in frames if frame.height]


def _operator_stacks(scene: Scene) -> Numbers:
    codes = scene.operators.extra.get("stack")
    if codes is None or len(scene.stacks) <= 1:
        return np.full(len(scene.operators), NOBODY, np.int64)
    known = np.array([bool(stack) for stack in scene.stacks], bool)
    return np.where(known[np.maximum(codes, 0)] & (codes >= 0), codes, NOBODY).astype(np.int64)


def _runtime_stacks(
    scene: Scene, around: Numbers, operator_stack: Numbers
) -> tuple[list[str | None], Numbers]:
    """The user's own line around each runtime call: from Python events, else from its operator."""
    nothing = np.full(len(scene.runtime), NOBODY, np.int64)
    if len(scene.python):
        own = scene.python.take(scene.flags(scene.python, user_line))
        nest = Nest(scene.axis, own.thread, own.start_ns, own.wall_ns)
        found = nest.innermost(scene.runtime.thread, scene.runtime.start_ns)
        lines = [user_line(name) for name in scene.names]
        return list(lines), pick(own.name, found)
    if (operator_stack >= 0).any():
        return [innermost_user_line(stack) for stack in scene.stacks], pick(operator_stack, around)
    return [], nothing


def _frame(
    picture: Picture,
    columns: Columns,
    kind: str,
    correlation: Numbers | None = None,
    sequence: Numbers | None = None,
    stack: Numbers | None = None,
) -> pl.DataFrame:
    scene = picture.scene
    processes = _numbers_of([process for process, _ in scene.threads])
    frame = pl.DataFrame(
        {
            "process": numbers(pick(processes, columns.thread.astype(np.int64))),
            "thread": _thread_numbers(scene, columns.thread.astype(np.int64)),
            "name": strings(scene.names, columns.name),
            "start_ns": columns.start_ns + picture.offset_ns,
            "wall_ns": columns.wall_ns,
        }
    )
    added: list[Any] = [pl.lit(kind).alias("kind")]
    if correlation is not None:
        added.append(numbers(correlation).alias("correlation"))
    if sequence is not None:
        added.append(numbers(sequence).alias("sequence"))
    if stack is not None and (stack >= 0).any():
        lines = [innermost_user_line(text) for text in scene.stacks]
        added.append(strings(lines, stack).alias("stack"))
    return frame.with_columns(added)


def _steps_frame(picture: Picture) -> pl.DataFrame:
    steps = picture.steps
    return pl.DataFrame(
        {
            "kind": pl.Series(["step"] * len(steps), dtype=pl.String),
            "name": pl.Series(steps.names, dtype=pl.String),
            "start_ns": steps.starts_ns + picture.offset_ns,
            "wall_ns": steps.ends_ns - steps.starts_ns,
        }
    )


def _phases_frame(picture: Picture) -> pl.DataFrame:
    phases = picture.phases
    return pl.DataFrame(
        {
            "kind": pl.Series(["phase"] * len(phases.labels), dtype=pl.String),
            "name": strings(list(PHASES), phases.labels),
            "start_ns": phases.starts_ns + picture.offset_ns,
            "wall_ns": phases.ends_ns - phases.starts_ns,
        }
    )


def _places_frame(picture: Picture, places: Places, kind: str) -> pl.DataFrame:
    return _frame(picture, places.intervals, kind).with_columns(
        strings(places.paths, places.path).alias("name")
    )


def operators_frame(picture: Picture) -> pl.DataFrame:
    """Table `ops`: operators inside steps, or all where there are no steps."""
    scene, operators, places = picture.scene, picture.scene.operators, picture.places
    device = scene.device
    kernels = (device.value("kind") == DEVICE_ROLES.index("kernel")) & (picture.launches.operator >= 0)
    time = np.zeros(len(operators), np.int64)
    count = np.zeros(len(operators), np.int64)
    np.add.at(time, picture.launches.operator[kernels], device.wall_ns[kernels])
    np.add.at(count, picture.launches.operator[kernels], 1)
    step = picture.steps.at(operators.start_ns)
    keys = ["name", "module", "stage", "phase", "direction", "shapes"]
    frame = pl.DataFrame(
        {
            "name": operators.name,
            "module": places.module,
            "stage": places.stage,
            "phase": picture.operator_phase,
            "direction": places.direction,
            "shapes": np.maximum(operators.value("shapes"), 0),
            "total_ns": operators.wall_ns,
            "self_ns": self_times(operators.wall_ns, picture.nest.parents()),
            "device_ns": time,
            "kernels": count,
            "inside": (step >= 0) | (len(picture.steps) == 0),
        }
    ).filter("inside")
    grouped = frame.group_by(keys, maintain_order=True).agg(
        pl.len().alias("count"), pl.col("total_ns", "self_ns", "device_ns", "kernels").sum()
    )
    texts = {
        "name": scene.names,
        "module": picture.modules.paths,
        "stage": picture.stages.paths,
        "phase": list(PHASES),
        "direction": list(DIRECTIONS),
        "shapes": [shape_text(text) for text in scene.shapes],
    }
    named = grouped.with_columns(
        strings(values, grouped[key].to_numpy()).fill_null("").alias(key) for key, values in texts.items()
    )
    return named if len(device) else named.with_columns(pl.lit(None, pl.Int64).alias("device_ns"))


def shape_text(text: bytes) -> str:
    """[[2, 3, 8], [], [4]] -> 2x3x8, 4"""
    inner = text.decode("ascii", "replace").replace(" ", "").replace("\n", "")
    shapes = [part.strip("[],") for part in inner.split("],")]
    return ", ".join(shape.replace(",", "x") for shape in shapes if shape)[:200]

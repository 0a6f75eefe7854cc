"""A run on an asynchronous device whose truth is known: a host that queues, a device that works it off.

The host pays for every launch, the device for every kernel; whoever reads a result waits, and so does who
launches into a full queue. From that the tables of a run are made as the recorder makes them: marks in
recorded steps, kernels in operator steps, a border in bare ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from detscope.runs.writer import RunWriter, polars_schema

MS = 1_000_000
PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")
MAIN, SIDE, TALK = 7, 13, 20
QUEUE = 12  # launches that a stream's queue holds


@dataclass(frozen=True)
class Work:
    """What one module does in one phase: launches of kernels; `waits`: then the host reads a result."""

    phase: str
    module: str | None = None
    stage: str | None = None
    launch_ms: float = 0.1
    device_ms: float = 5.0
    kernels: int = 1
    waits: bool = False
    stream: int = MAIN


@dataclass(frozen=True)
class Plan:
    """A step: how long the loader takes, what is queued, and what the host does besides."""

    work: Sequence[Work]
    data_ms: float = 0.0
    other_ms: float = 0.0
    mark_ms: float = 0.0  # what a recorded step costs the host more, in all


@dataclass
class Mark:
    """A border as both clocks saw it, in ms."""

    name: str
    host: float
    device: float


@dataclass
class Kernel:
    step: int
    work: Work
    start: float
    wall: float
    launch: float
    launch_wall: float


@dataclass
class Planted:
    """Everything that happened, in ms."""

    marks: dict[int, list[Mark]] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    waits: list[tuple[int, float, float]] = field(
        default_factory=list
    )  # step, start, length of a host's wait


def typical_plan(launch_ms: float = 0.1, device_ms: float = 5.0, waits: bool = False, **more: Any) -> Plan:
    """A small detector: two modules of the backbone, one head; forward, backward, optimizer."""
    parts = (("backbone.0", "backbone", 1.0), ("backbone.1", "backbone", 2.0), ("head", "head", 1.0))
    work = [Work("transfer", launch_ms=launch_ms, device_ms=device_ms / 5)]
    for index, (module, stage, times) in enumerate(parts):
        first = waits and index == 0
        work.append(Work("forward", module, stage, launch_ms, times * device_ms, waits=first))
    for module, stage, times in reversed(parts):
        work.append(Work("backward", module, stage, launch_ms, 2 * times * device_ms))
    work.append(Work("optimizer", launch_ms=launch_ms, device_ms=device_ms))
    return Plan(work, **more)


def simulate(plan: Plan, modes: Sequence[str]) -> Planted:
    """The steps one after the other; host and device begin at 0."""
    found = Planted()
    host, free = 0.0, {MAIN: 0.0, SIDE: 0.0, TALK: 0.0}
    ends: list[float] = []
    for step, mode in enumerate(modes):
        marks = found.marks[step] = []
        if mode == "ops" and (step == 0 or modes[step - 1] != "ops"):
            host = max(host, *free.values())  # a window of operators begins with an empty queue
        marks.append(Mark("data", host, max(host, free[MAIN])))
        host += plan.data_ms
        marks.append(Mark("other", host, max(host, free[MAIN])))
        for phase in PHASES[1:-1]:
            own = [work for work in plan.work if work.phase == phase]
            if not own:
                continue
            for work in own:
                name = f"{phase} {work.module}" if work.module else phase
                marks.append(Mark(name, host, max(host, free[MAIN])))
                if mode == "recorded":
                    host += plan.mark_ms / len(plan.work)
                for _ in range(work.kernels):
                    host = max([host, *ends[-QUEUE:][:1]]) if len(ends) >= QUEUE else host
                    launch, each = host, work.launch_ms / work.kernels
                    host += each
                    start = max(free[work.stream], host)
                    if work.stream != TALK and work.phase == "optimizer":
                        start = max(start, free[TALK])  # the update waits for the exchange
                    free[work.stream] = start + work.device_ms / work.kernels
                    if work.stream == MAIN:
                        ends.append(free[MAIN])
                    found.kernels.append(
                        Kernel(step, work, start, work.device_ms / work.kernels, launch, each)
                    )
                if work.waits and host < free[MAIN]:
                    found.waits.append((step, host, free[MAIN] - host))
                    host = free[MAIN]
            marks.append(Mark("other", host, max(host, free[MAIN])))
        host += plan.other_ms
        marks.append(Mark("end", host, max(host, free[MAIN])))
    return found


def planted_ms(plan: Plan) -> dict[str, float]:
    """How long the device works in each phase on the stream that computes."""
    return {
        phase: sum(work.device_ms for work in plan.work if work.phase == phase and work.stream == MAIN)
        for phase in PHASES
    }


def write_run(
    parent: Path, plan: Plan, modes: Sequence[str], info: Mapping[str, Any] | None = None, turns: int = 3
) -> Path:
    """The run as the recorder writes it; modules are marked in turn, one of `turns` in each step."""
    found = simulate(plan, modes)
    cost = {"mark_cost_ns": 4000, "marks_per_step": 20.0, "below_mark": ["tiny"], "unmarked": ["never"]}
    about = {
        "verb": "train",
        "device": "cuda:0",
        "level": "ops" if "ops" in modes else "modules",
        "batch_size": 2,
        "precision": "fp32",
        "stages": ["backbone", "head"],
        "device_clock": {"source": "marks", "why": None, **cost},
        **(info or {}),
    }
    writer = RunWriter(parent, "train", "planted", about)
    _write_host(writer, found, modes)
    _write_marks(writer, found, modes, turns)
    _write_kernels(writer, found, modes)
    nodes = [
        ("module", path, kind, None, 10) for path, kind in (("", "Net"), ("tiny", "ReLU"), ("never", "ReLU"))
    ]
    paths = dict.fromkeys(work.module for work in plan.work if work.module)
    nodes += [("module", path, "Conv2d", path.partition(".")[0], 100) for path in paths]
    writer.append_rows("nodes", nodes)
    content = polars_schema("content")
    rows = [{"step": step, "images": 2, "boxes": step % 5, "pause_ns": 0} for step in range(len(modes))]
    writer.append_frame("content", pl.DataFrame(rows, schema=content))
    writer.close_run("ok")
    return writer.folder


def _ns(ms: float) -> int:
    return round(ms * MS)


def segments(marks: Sequence[Mark]) -> list[tuple[Mark, Mark]]:
    return list(pairwise(marks))


def _phase_of(mark: Mark) -> str:
    return mark.name.partition(" ")[0]


def _write_host(writer: RunWriter, found: Planted, modes: Sequence[str]) -> None:
    steps, spans = [], []
    for step, mode in enumerate(modes):
        marks = found.marks[step]
        lengths = dict.fromkeys(PHASES, 0.0)
        for first, second in segments(marks):
            lengths[_phase_of(first)] += second.host - first.host
        lengths = {"step": marks[-1].host - marks[0].host, **lengths}
        wanted = lengths if mode != "bare" else {name: lengths[name] for name in ("step", "data")}
        steps += [(step, 0, mode, name, _ns(marks[0].host), _ns(ms), None) for name, ms in wanted.items()]
        if mode == "bare":
            continue
        whole = {"forward": 0.0, "backward": 0.0}
        for first, second in segments(marks):
            phase, _, module = first.name.partition(" ")
            ms = second.host - first.host
            if phase in whole:
                whole[phase] += ms
                stage = module.partition(".")[0]
                spans.append((step, "stage", stage, phase, 1, _ns(ms), _ns(ms), None, None))
            if module:
                spans.append((step, "module", module, phase, 1, _ns(ms), _ns(ms), None, None))
        for phase, ms in whole.items():
            spans.append((step, "module", "", phase, 1, _ns(ms), 0, None, None))
            spans.append((step, "module", "tiny", phase, 1, 1000, 1000, None, None))
            spans.append((step, "module", "never", phase, 1, 1000, 1000, None, None))
    writer.append_rows("steps", steps)
    writer.append_rows("spans", spans)


def _write_marks(writer: RunWriter, found: Planted, modes: Sequence[str], turns: int) -> None:
    steps: list[tuple[Any, ...]] = []
    spans: list[tuple[Any, ...]] = []
    for step, mode in enumerate(modes):
        if mode not in ("recorded", "bare"):
            continue
        marks = found.marks[step]
        start, end = marks[0], marks[-1]
        walls, idles = dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0.0)
        parts: dict[tuple[str, str | None], tuple[float, float]] = {}
        for first, second in segments(marks):
            phase, _, module = first.name.partition(" ")
            wall = second.device - first.device
            idle = min(wall, max(0.0, second.host - first.device))
            walls[phase] += wall
            idles[phase] += idle
            if phase in ("forward", "backward"):
                before = parts.get((phase, module or None), (0.0, 0.0))
                parts[phase, module or None] = (before[0] + wall, before[1] + idle)
        ahead = _ns(end.device - end.host)
        whole = (_ns(start.device), _ns(end.device - start.device), _ns(sum(idles.values())), ahead)
        steps.append((step, "step", 0, *whole))
        if mode == "bare":
            continue
        steps += [
            (step, name, 0, _ns(start.device), _ns(walls[name]), _ns(idles[name]), None) for name in PHASES
        ]
        steps += [
            (step, kernel.work.phase, 1, _ns(kernel.start), _ns(kernel.wall), 0, None)
            for kernel in found.kernels
            if kernel.step == step and kernel.work.stream == SIDE
        ]
        stages: dict[tuple[str, str], tuple[float, float]] = {}
        for (phase, module), (wall, idle) in parts.items():
            key = ((module or "").partition(".")[0], phase)
            before = stages.get(key, (0.0, 0.0))
            stages[key] = (before[0] + wall, before[1] + idle)
        spans += [
            (step, "stage", stage, None, phase, 1, _ns(wall), _ns(idle))
            for (stage, phase), (wall, idle) in stages.items()
        ]
        named = [(key, times) for key, times in parts.items() if key[1] is not None]
        for index, ((phase, module), (wall, idle)) in enumerate(named):
            if index % turns == step % turns:
                spans.append((step, "module", module, "", phase, 1, _ns(wall), _ns(idle)))
        for phase in ("forward", "backward"):
            if walls[phase]:
                spans.append((step, "module", "", None, phase, 1, _ns(walls[phase]), _ns(idles[phase])))
    writer.append_rows("device_steps", steps)
    writer.append_rows("device_spans", spans)


def _write_kernels(writer: RunWriter, found: Planted, modes: Sequence[str]) -> None:
    shown = [step for step, mode in enumerate(modes) if mode == "ops"]
    device: list[dict[str, Any]] = []
    host: list[dict[str, Any]] = []
    for number, kernel in enumerate(found.kernels):
        if kernel.step not in shown:
            continue
        work = kernel.work
        device.append(
            {
                "rank": 0,
                "device": 0,
                "stream": work.stream,
                "kind": "copy" if work.phase == "transfer" else "kernel",
                "name": "nccl" if work.stream == TALK else f"kernel of {work.module}",
                "start_ns": _ns(kernel.start),
                "wall_ns": _ns(kernel.wall),
                "correlation": number,
                "launch_ns": _ns(kernel.launch),
                "launch_wall_ns": _ns(kernel.launch_wall),
                "operator": "aten::conv2d",
                "module": work.module,
                "direction": "backward" if work.phase == "backward" else "forward",
                "stage": work.stage,
                "phase": work.phase,
                "step": kernel.step,
                "communication": work.stream == TALK,
            }
        )
    for step in shown:
        marks = found.marks[step]
        times = {"start_ns": _ns(marks[0].host), "rank": 0}
        whole = {"wall_ns": _ns(marks[-1].host - marks[0].host)}
        host.append({"kind": "step", "name": f"step {step}", **times, **whole})
        loaded = {"wall_ns": _ns(marks[1].host - marks[0].host)}
        host.append({"kind": "loader", "name": "DataLoader.__next__", **times, **loaded})
    for step, start, wall in found.waits:
        if step in shown:
            times = {"start_ns": _ns(start), "wall_ns": _ns(wall), "rank": 0, "process": 1, "thread": 1}
            host.append({"kind": "operator", "name": "aten::item", **times})
            host.append({"kind": "runtime", "name": "cudaStreamSynchronize", **times})
    if device:
        writer.append_frame("device_events", pl.DataFrame(device, schema=polars_schema("device_events")))
        writer.append_frame("host_events", pl.DataFrame(host, schema=polars_schema("host_events")))

"""What every recorder does with a step, whoever says when it begins and ends: a loop or a script.

`prepare_step` brings the probes into the state the coming step wants, `begin_step` opens it, `finish_step`
closes it and does the bookkeeping. Everything costly (replaying events, writing tables) happens there,
between steps, and is not part of any step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import nn

from detscope import marks
from detscope.errors import UsageError
from detscope.faults import error_text
from detscope.machine.accelerator import find_accelerator
from detscope.machine.describe import describe_accelerator
from detscope.machine.facts import gather_facts
from detscope.record.census.places import find_counters
from detscope.record.census.watch import Census
from detscope.record.device.clock import DeviceClock, DeviceMark
from detscope.record.device.mark_plan import MarkPlan
from detscope.record.device.telemetry import Telemetry
from detscope.record.foreign import WeakObjects
from detscope.record.loader import BatchTiming, forget_workers
from detscope.record.memory.failures import (
    MemoryFailure,
    find_open_phase,
    find_out_of_memory,
    locate_failure,
)
from detscope.record.memory.trace import SpanBuffer
from detscope.record.memory.watch import MemoryWatch
from detscope.record.model.borders import BorderWriter
from detscope.record.model.calls import CallListener
from detscope.record.model.named_parts import NamedParts
from detscope.record.model.phases import PhaseProbes
from detscope.record.model.probes import ModelProbes
from detscope.record.operators.compiled import count_compiled_frames, has_compiled_parts
from detscope.record.operators.profiler import (
    IN_COMPILED_CODE,
    OpenSpans,
    OperatorWindow,
    inside_compiled_code,
)
from detscope.record.optimizer_facts import describe_optimizer, describe_tensors
from detscope.record.steps.device_tables import DeviceTables, describe_clock
from detscope.record.steps.events import (
    ENTER,
    EXIT,
    MARK,
    STEP_ENDS,
    EventStretch,
    Marker,
    decode_events,
    encode_event,
)
from detscope.record.steps.nodes import NodeTable
from detscope.record.steps.schedule import BARE, CENSUS, MEMORY, OPERATORS, RECORDED, WARMUP, Schedule
from detscope.record.steps.tables import OpenStep, StepTables
from detscope.record.transforms.timer import end_timing
from detscope.runs.definitions import DEFINITIONS
from detscope.runs.writer import OWN_FAILURES, RunWriter
from detscope.zoo.contract import Observer, Stage, list_names
from detscope.zoo.registry import recognise_parts
from detscope.zoo.structure import count_parameters

LEVELS = ("phases", "modules", "ops")
COLLECTIVES = "collectives"
NOT_COUNTED = "torch.compile: what runs inside of compiled code cannot be counted, so there is no census"


class StepRecorder:
    """Writes a run of steps; those who say what a step is use its parts, and nobody else does."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        out: str | Path = "runs",
        *,
        level: Literal["phases", "modules", "ops"] = "modules",
        modules: str = "all",
        stages: Sequence[Stage] | None = None,  # None: found by the model's family or children
        observers: Sequence[Observer] | None = None,
        warmup_steps: int = 3,
        bare_every: int = 4,
        ops_steps: int = 3,
        traced_steps: int = 8,
        memory: bool = False,
        memory_steps: int = 5,
        census: bool = False,  # at level ops it is done anyway
        census_steps: int = 3,
        telemetry_hz: float = 2.0,
        seed: int = 0,  # of the places of bare steps
        name: str | None = None,
        verb: str = "record",
        info: Mapping[str, Any] | None = None,
        config_toml: str = "",
    ) -> None:
        if level not in LEVELS:
            raise UsageError(f"level {level!r} is not one of {', '.join(LEVELS)}", "try level='modules'")
        if modules not in ("all", "leaf", "none") and not modules.isdigit():
            raise UsageError(f"modules {modules!r} is not all, leaf, none or a depth", "try modules='all'")
        if stages is None or observers is None:
            _, found_stages, found_observers = recognise_parts(model)
            stages = found_stages if stages is None else stages
            observers = found_observers if observers is None else observers
        self.level = level
        name = name or type(model).__name__
        weight = next(model.parameters(), None)
        self._device = "cpu" if weight is None else str(weight.device)
        known = {
            "level": level,
            "device": self._device,
            "stages": list_names(stages),
            "bare_steps": {"one_in": bare_every, "seed": seed},
            "model": {"name": name, "parameters": count_parameters(model)},
            **(info or {}),
        }
        known["model"] = {**known["model"], **describe_tensors(model)}
        self._run = (Path(out), verb, name, known, config_toml)
        self._telemetry_hz = telemetry_hz
        self.nodes = NodeTable()
        self.accelerator = find_accelerator(self._device)
        self._clock = DeviceClock(self.accelerator) if self.accelerator.has_clock else None
        self._plan = MarkPlan(self.nodes)
        self._marked: frozenset[int] = frozenset()
        marker = None if self._clock is None else Marker(self._clock.record, self._plan.wanted)
        self.buffer = SpanBuffer(marker)
        if marker is not None:
            self.buffer.find_exchange = lambda: encode_event(self._find_collectives(), MARK)
        self.borders = BorderWriter(self.buffer, self._plan.wants_backward)
        self._open_spans = OpenSpans(self.buffer.close_spans, self.borders.close_spans)
        operators, blocks = ops_steps if level == "ops" else 0, memory_steps if memory else 0
        counted = census_steps if census or level == "ops" else 0
        settles = not self.accelerator.is_host
        self.schedule = Schedule(
            warmup_steps,
            bare_every,
            operators,
            memory_steps=blocks,
            census_steps=counted,
            settles=settles,
            seed=seed,
        )
        self._has_compiled, self._compiled_before = has_compiled_parts(model), count_compiled_frames()
        self.census = Census(not self.accelerator.is_host, self.find_phase) if counted else None
        given = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer or ()
        known["optimizers"] = [describe_optimizer(one) for one in given]
        self.optimizers: WeakObjects[torch.optim.Optimizer] = WeakObjects(given)
        self.parts = NamedParts(self.nodes, self.borders)
        self._phases = self.make_phases(model)
        self.parts.calls = self._phases.calls
        self.memory = self.make_memory(model) if memory else None
        self.fetching = False  # a batch is being waited for
        self._last_events: list[int] = []  # of the step that ended last, in whatever way
        self.counts: dict[str, int] = {}
        self.notes: list[str] = []
        which = "none" if level == "phases" else modules
        self.probes = self.make_probes(model, which, stages, observers)
        self.window = OperatorWindow(self.accelerator, spans=self._open_spans)
        self._traced_steps = traced_steps
        self.attached = ""
        self.begun = False  # whether there is a run folder: making one may fail
        self.index = 0  # of the coming step since `first_step`
        self.first_step = 0
        self.last_loss: float | None = None
        self.epoch = -1
        self.step: OpenStep | None = None
        self.loaders: list[Iterable[Any]] = []  # whose workers time their batches
        self._listening: AbstractContextManager[None] | None = None
        self.between_steps: Callable[[int], None] = lambda _steps_done: None  # outside of every step

    def make_phases(self, model: nn.Module) -> CallListener:
        """Who finds the phases of steps."""
        probes = PhaseProbes(self.buffer, self.nodes, model, self.optimizers, self.parts)
        probes.hear_arguments = self.watch_arguments
        return probes

    def make_probes(
        self, model: nn.Module, which: str, stages: Sequence[Stage], observers: Sequence[Observer]
    ) -> ModelProbes:
        """Who listens to the modules of a model."""
        tell = (self._add_count, self.note, self._phases)
        parts = self.parts.find_methods(model)
        return ModelProbes(model, self.nodes, self.borders, which, stages, observers, *tell, parts)

    def make_memory(self, model: nn.Module) -> MemoryWatch:
        """Who accounts for the memory of a model and its optimizers."""
        about = (self.nodes, self.buffer, self.borders, self._device)
        return MemoryWatch(model, self.optimizers, *about, self._open_spans)

    # ---- lifetime

    def __enter__(self) -> Self:
        out, verb, name, known, config_toml = self._run
        info = {**known, "environment": gather_facts(), "definitions": DEFINITIONS}
        self.writer = RunWriter(out, verb, name, info, config_toml)
        self.begun = True
        if self.level == "ops" or self.memory:
            self._open_spans.watch_spans()
        self.tables = StepTables(self.writer, self.nodes, self._traced_steps, self._plan.learn_ways)
        self.device_tables: DeviceTables | None = None
        if self._clock is not None:
            self._clock.set_anchor()
            about = (self.accelerator, self._clock, self._plan, self.tables.drawn)
            self.device_tables = DeviceTables(self.writer, self.nodes, *about)
        if not self.accelerator.is_host:
            self.writer.info["device_clock"] = describe_clock(self.accelerator, self._clock)
            self.writer.info["environment"]["accelerator"] = describe_accelerator(self.accelerator)
        device = None if self.accelerator.is_host else self._device
        self.telemetry = Telemetry(self._telemetry_hz, device=device) if self._telemetry_hz > 0 else None
        if self.telemetry:
            self.telemetry.start()
        self.parts.listen_to_functions()
        self._listening = marks.listening(self)
        self._listening.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        status, reason = "ok", None
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            status, reason = "partial", "interrupted"
        elif kind is not None and not issubclass(kind, GeneratorExit):
            reason = f"{kind.__name__}: {error and error_text(error)}".splitlines()[0][:500]
            status = "failed"
        failure = find_out_of_memory(error, self._device)
        try:
            self.abandon_step()
            self.attach_probes("nothing")
            self.probes.remove_all()
            self._phases.remove()
            self.parts.remove()
        finally:
            if self._listening:
                self._listening.__exit__(None, None, None)
            if self.telemetry:
                self.telemetry.stop()
            for loader in self.loaders:
                forget_workers(loader)
            end_timing()
        if failure is not None:
            status = failure.status
        fault: BaseException | None = None
        # a device that failed makes some of these fail: whatever can be written is
        for finish in (
            self._finish_operators,
            lambda: self.tables.close_tables(self._drain_telemetry()),
            self._finish_device,
            lambda: self._finish_memory(failure),
        ):
            try:
                finish()
            except OWN_FAILURES as one:
                fault = fault or one
        try:
            self.writer.info["notes"] = self.notes
            self.writer.info["part_places"] = self.parts.describe_places()
            self.writer.close_run(status, reason)
        except OWN_FAILURES as one:
            fault = fault or one
        self._open_spans.stop_watching()
        if fault is not None and kind is None:  # never hide the user's own exception behind ours
            raise fault
        return False

    def _finish_operators(self) -> None:
        if self.window.is_open:
            self.tables.add_operators(self.window.stop())

    def _finish_device(self) -> None:
        if self.device_tables is not None:
            self.device_tables.close_tables()

    def _finish_memory(self, failure: MemoryFailure | None) -> None:
        if failure is not None:
            self.writer.info["oom"] = self._describe_failure(failure)
        if self.memory:
            self.memory.write_rest(self.writer, keep_unfinished=failure is not None)

    @property
    def steps_done(self) -> int:
        """Steps that ended, of whatever kind."""
        return self.index

    @property
    def next_step(self) -> int:
        """Number of the step under way, or of the next."""
        return self.first_step + self.index

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.writer.folder

    def rest(self) -> None:
        """Listen to nothing until the next step: what comes between, such as an evaluation, runs bare."""
        self.attach_probes("nothing")
        if self.memory:
            self.memory.pause_session()

    def note(self, text: str) -> None:
        """Say something once, in every view of the run."""
        if text not in self.notes:
            self.notes.append(text)

    def losses(self, step: int, values: Mapping[str, float]) -> None:
        """Losses of a step, as only the loop knows them; they may come late."""
        self.last_loss = values.get("loss")
        self.writer.append_rows("losses", [(step, name, value) for name, value in values.items()])

    # ---- steps

    def prepare_step(self) -> str:
        """Bring the probes into the state the coming step wants; its mode."""
        mode = self.schedule.mode_of(self.index)
        if self.telemetry:
            self.telemetry.hold_samples(mode == BARE)
        if mode == BARE:
            self.attach_probes("nothing")
        elif self.level == "phases" or mode == CENSUS:
            self.attach_probes("phases")
        else:
            self.attach_probes("modules" if self.schedule.with_modules(self.index) else "phases")
        if mode == OPERATORS and not self.window.is_open:
            self.window.start()
            if self.window.unknown is not None:
                self.writer.info["cannot_tell"] = [self.window.unknown]
        elif mode != OPERATORS and self.window.is_open:
            self.tables.add_operators(self.window.stop())
        self._plan_marks(mode)
        watching = self.memory is not None and self.schedule.with_memory(self.index)
        self.borders.record_functions = mode == OPERATORS or watching
        if self.memory and watching:
            self.memory.begin_step(self.next_step, shapes=mode == WARMUP)
        return mode

    def _plan_marks(self, mode: str) -> None:
        """Which borders are marked in the queue of the device; steps of operators are timed by kernels."""
        if self._clock is None or self.buffer.marker is None:
            return
        self.buffer.marker.active = mode not in (OPERATORS, MEMORY, CENSUS)
        modules, counts = self.attached == "modules", mode == RECORDED
        self._marked = self._plan.plan_step(self._clock.mark_cost_ns, modules, counts)

    def mark_device(self) -> DeviceMark | None:
        """A mark in the queue of the device, at a border of the step; None where there is no such clock."""
        return None if self.buffer.marker is None else self.buffer.marker.record()

    def forget_events(self, stretch: EventStretch) -> None:
        """Events that belong to no step; their marks can be used again."""
        if self._clock is not None:
            self._clock.recycle_marks(stretch.handles)

    def begin_step(
        self,
        mode: str,
        start_ns: int,
        waited_ns: int,
        pause_ns: int = 0,
        marks: tuple[DeviceMark | None, DeviceMark | None] = (None, None),
    ) -> OpenStep:
        """Open the step whose batch has arrived; what was heard before is not part of it."""
        step = self.step = OpenStep(self.next_step, self.epoch, mode, start_ns, waited_ns, pause_ns)
        step.begin_marks, step.marked = marks, self._marked
        self.forget_events(self.buffer.take_events())
        if mode == CENSUS:
            self.begin_census()
        return step

    def begin_census(self) -> None:
        """Count in this step, unless torch.compile made the code that is running."""
        if self.census is None:
            return
        if inside_compiled_code():
            self.skip_deep_looks(IN_COMPILED_CODE)
        elif self._has_compiled or count_compiled_frames() > self._compiled_before:
            self.skip_census()
        else:
            self.census.begin_step(find_counters(self.optimizers))

    def skip_census(self) -> None:
        """No counting: compiled code would be compiled anew under torch's modes."""
        if self.schedule.census_steps:
            self.note(NOT_COUNTED)
            self.schedule = replace(self.schedule, census_steps=0)
            if self.step is not None and self.step.mode == CENSUS:
                self.step.mode = WARMUP

    def end_census(self, step: OpenStep | None) -> None:
        """What was counted in a whole step is kept."""
        if self.census is None or not self.census.is_listening:
            return
        rows = self.census.end_step(step.index if step is not None and step.mode == CENSUS else None)
        self.writer.append_rows("census", rows)
        self.writer.info["census"] = {
            "steps": list(self.census.steps),
            "facts": dict(self.census.facts),
            "files": self.census.own_files(),
            "statements": dict(self.census.statements),
        }
        if self.census.fault is not None:
            self.note(f"the census is not whole: {self.census.fault}")

    def finish_step(self, end_ns: int | None = None, end_mark: DeviceMark | None = None) -> int:
        """Close the current step, now or as of `end_ns`, then do the bookkeeping; returns when it ended."""
        step, self.step = self.step, None
        if step is None:
            return perf_counter_ns()
        self.end_census(step)
        step.end_ns = perf_counter_ns() if end_ns is None else end_ns
        step.end_mark = end_mark or self.mark_device()
        step.processor = self.buffer.mark_processor(STEP_ENDS)
        step.events, step.handles = self.buffer.take_events()
        step.counts, self.counts = self.counts, {}
        self.index += 1
        self._last_events = step.events
        if self.memory:
            if self.schedule.with_memory(self.index) and inside_compiled_code():
                self.skip_deep_looks(IN_COMPILED_CODE)
            coming = self.schedule.mode_of(self.index) == WARMUP
            shapes = coming if self.schedule.with_memory(self.index) else None
            self.writer.append_rows("memory", self.memory.end_step(step, step.mode == MEMORY, shapes))
        traced = self.tables.add_step(step)
        if self.device_tables is not None:
            self.device_tables.add_step(step, traced)
        if self.window.is_full and self.schedule.mode_of(self.index) == OPERATORS:
            self.schedule = self.schedule.without_operators_from(self.index)
            grown = self.window.taken_bytes / 1e9
            self.note(f"operators of fewer steps than asked for: the process grew by {grown:.1f} GB")
        self.between_steps(self.index)
        undisturbed = self.schedule.mode_of(self.index) == BARE
        if self.writer.is_flush_due and not undisturbed:
            self.writer.append_rows("telemetry", self._drain_telemetry())
            self.tables.flush_rows(wait=False)
        return step.end_ns

    def skip_deep_looks(self, why: str) -> None:
        """No operators and no memory from the coming step on."""
        self.note(why)
        self.schedule = replace(self.schedule, operator_steps=0, memory_steps=0, census_steps=0)

    def abandon_step(self, complete_if_possible: bool = False) -> None:
        """A step the loop left by `break` or an exception: kept if it got as far as its last phase."""
        step = self.step
        if step is None:
            return
        self.end_census(None)
        phases = [self.nodes.phase_node(name).number for name in ("optimizer", "backward")]
        broken = self.buffer.failed or find_open_phase(self.buffer.items, self.nodes) is not None
        reached = any(number in phases for number, *_ in decode_events(self.buffer.items))
        if complete_if_possible and reached and not broken:
            self.finish_step()
        else:
            self.step = None
            left = self.buffer.take_events()
            self._last_events = left.items
            self.forget_events(left)
            if self.memory:
                self.memory.abandon_step(step.index, self._last_events)

    def attach_probes(self, what: str) -> None:
        """Listen to nothing, to phases, or to modules too."""
        if what == self.attached:
            return
        self.probes.detach_modules()
        self._phases.detach()
        if what != "nothing":
            self._phases.attach()  # first, so that the forward phase encloses the root module
            self.probes.attach_modules(modules=what == "modules")
        self.parts.active, self.parts.with_modules = what != "nothing", what == "modules"
        self.attached = what

    # ---- marks

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase that code marks itself: `with detscope.phase("transfer"):`."""
        number = self.nodes.phase_node(name).number
        if self.attached in ("", "nothing"):
            yield
            return
        self.buffer.enter_node(number)
        try:
            yield
        finally:
            self.buffer.exit_node(number)

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """A named region inside whatever is going on."""
        if self.attached != "modules":
            yield
            return
        before, after = self.borders.border_pair(self.nodes.add_node("region", name, "region").number)
        before(None, ())
        try:
            yield
        finally:
            after(None, (), None)

    # ---- collectives inside of a model's forward and backward: a stage of their own, no module's work

    def track_collectives(self) -> Callable[[str], Callable[[], object]]:
        """A function that takes what follows for time in collectives, and gives the one that ends it."""
        number, buffer = self._find_collectives(), self.buffer

        def begin_collective(phase: str) -> Callable[[], object]:
            if self.attached != "modules" or phase not in ("forward", "backward"):
                return lambda: None
            if phase == "forward":
                buffer.enter_node(number)
                return lambda: buffer.exit_node(number)
            # the node whose backward runs; after the begin of the phase nothing has been marked yet
            events = decode_events(buffer.items, backwards=True)
            last, action = next(((one, what) for one, what, *_ in events if what != EXIT), (0, ENTER))
            buffer.add_event(encode_event(number, MARK))
            return lambda: buffer.add_event(encode_event(last, MARK)) if action == MARK else None

        return begin_collective

    def _find_collectives(self) -> int:
        return self.nodes.add_node("region", COLLECTIVES, "region", COLLECTIVES).number

    def find_phase(self) -> str | None:
        """The phase under way; None between steps."""
        if self.step is None:
            return None
        return find_open_phase(self.buffer.items, self.nodes) or "other"

    # ---- small helpers

    def _describe_failure(self, failure: MemoryFailure) -> dict[str, Any]:
        """What ran out and where; the operator is known where memory was watched."""
        step = self.next_step
        if self.memory and self.fetching:
            self.memory.abandon_step(step, ())
        place = locate_failure(self._last_events, self.nodes, self.borders.failed_in)
        if self.fetching:  # the step had not begun: its batch was being made
            place = {"phase": "data", "module": None}
        watched = self.memory.unfinished.place if self.memory and self.memory.unfinished else {}
        place["module"] = place["module"] or watched.get("module")
        return {"step": step, **asdict(failure), "operator": None, "time_ns": None, **watched, **place}

    def watch_arguments(self, given: Any) -> None:
        """A model was called with these."""
        if self.census is not None:
            self.census.add_arguments(given)

    def watch_inputs(self, batch: Any, timing: BatchTiming | None) -> None:
        """A batch has come: where memory is recorded, its tensors are inputs."""
        if self.census is not None and self.schedule.census_steps:
            self.census.add_batch(batch)
        if self.memory:
            self.memory.add_inputs(batch, None if timing is None or timing.worker < 0 else timing.pid)

    def _add_count(self, name: str, value: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + value

    def _drain_telemetry(self) -> list[tuple[Any, ...]]:
        return [tuple(sample) for sample in self.telemetry.drain_samples()] if self.telemetry else []

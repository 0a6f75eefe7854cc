"""The recorder: attach it to a model in anybody's loop, and a run folder comes out.

    with detscope.Recorder(model, optimizer=optimizer, out="runs") as recorder:
        for images, targets in recorder.steps(loader):
            ...

Everything costly (replaying events, writing tables) happens between steps and is not part of any step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn

from detscope import marks
from detscope.errors import UsageError
from detscope.machine.facts import environment
from detscope.record.content import describe_batch
from detscope.record.device.clock import device_clock_for
from detscope.record.device.telemetry import Telemetry
from detscope.record.endings import outcome_of
from detscope.record.foreign import WeakObjects
from detscope.record.loader import BatchTiming, forget_workers, instrumented_iterator, unwrap
from detscope.record.memory.failures import OutOfMemory, open_phase, find_out_of_memory, place_of_failure
from detscope.record.memory.spans import SeeingScribe, SpanningBuffer
from detscope.record.memory.watch import MemoryWatch
from detscope.record.model.phases import PhaseProbes, Phases
from detscope.record.model.probes import ModelProbes, ObserverLike, StageLike
from detscope.record.operators.profiler import (
    IN_COMPILED_CODE,
    OpenSpans,
    OperatorWindow,
    inside_compiled_code,
)
from detscope.record.steps.events import BATCH_ARRIVED, STEP_BEGINS, STEP_ENDS
from detscope.record.steps.nodes import NodeTable
from detscope.record.steps.schedule import BARE, MEMORY, OPERATORS, WARMUP, Schedule
from detscope.record.steps.tables import Notebook, OpenStep
from detscope.runs.definitions import DEFINITIONS
from detscope.runs.writer import RunWriter
from detscope.zoo.recognise import recognise

LEVELS = ("phases", "modules", "ops")


class Recorder:
    """Listens to a training (or inference) loop and writes a run."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        out: str | Path = "runs",
        *,
        level: Literal["phases", "modules", "ops"] = "modules",
        modules: str = "all",
        stages: Sequence[StageLike] | None = None,  # None: found by the model's family or children
        observers: Sequence[ObserverLike] | None = None,
        warmup_steps: int = 3,
        bare_every: int = 4,
        ops_steps: int = 3,
        traced_steps: int = 8,
        memory: bool = False,
        memory_steps: int = 5,
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
            _, found_stages, found_observers = recognise(model)
            stages = found_stages if stages is None else stages
            observers = found_observers if observers is None else observers
        self.level = level
        self._name = name or type(model).__name__
        self._verb = verb
        self._out = Path(out)
        self._device = str(next(model.parameters(), torch.empty(0)).device)
        self._info = {
            "level": level,
            "device": self._device,
            "stages": [stage.name for stage in stages],
            "bare_steps": {"one_in": bare_every, "seed": seed},
            "model": {"name": self._name, "parameters": sum(p.numel() for p in model.parameters())},
            **(info or {}),
        }
        self._config_toml = config_toml
        self._telemetry_hz = telemetry_hz
        self.nodes = NodeTable()
        self._buffer = SpanningBuffer(device_clock_for(self._device))
        self._scribe = SeeingScribe(self._buffer)
        self._open_spans = OpenSpans(self._buffer.close_spans, self._scribe.close_spans)
        operators, blocks = ops_steps if level == "ops" else 0, memory_steps if memory else 0
        self.schedule = Schedule(warmup_steps, bare_every, operators, memory_steps=blocks, seed=seed)
        given = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer or ()
        optimizers = WeakObjects(given)
        self._phases = self._make_phases(model, optimizers)
        self._memory: MemoryWatch | None = None
        if memory:
            about = (self.nodes, self._buffer, self._scribe, self._device)
            self._memory = MemoryWatch(model, optimizers, *about, self._open_spans)
        self._fetching = False  # a batch is being waited for
        self._last_events: list[int] = []  # of the step that ended last, in whatever way
        self._counts: dict[str, int] = {}
        self.notes: list[str] = []
        which = "none" if level == "phases" else modules
        self._probes = self._make_probes(model, which, stages, observers)
        self._window = OperatorWindow(self._device.startswith("cuda"), spans=self._open_spans)
        self._traced_steps = traced_steps
        self._attached = ""
        self.begun = False  # whether there is a run folder: making one may fail
        self._index = 0
        self._first_step = 0
        self.last_loss: float | None = None
        self._epoch = -1
        self._step: OpenStep | None = None
        self._loaders: list[Iterable[Any]] = []
        self._listening: AbstractContextManager[None] | None = None
        self.between_steps: Callable[[int], None] = lambda _steps_done: None  # outside of every step

    def _make_phases(self, model: nn.Module, optimizers: WeakObjects[torch.optim.Optimizer]) -> Phases:
        return PhaseProbes(self._buffer, self.nodes, model, optimizers)

    def _make_probes(
        self, model: nn.Module, which: str, stages: Sequence[StageLike], observers: Sequence[ObserverLike]
    ) -> ModelProbes:
        tell = (self._add_count, self.note, self._phases)
        return ModelProbes(model, self.nodes, self._scribe, which, stages, observers, *tell)

    # ---- lifetime

    def __enter__(self) -> Recorder:
        info = {**self._info, "environment": environment(), "definitions": DEFINITIONS}
        self.writer = RunWriter(self._out, self._verb, self._name, info, self._config_toml)
        self.begun = True
        if self.level == "ops" or self._memory:
            self._open_spans.watch()
        self._notebook = Notebook(self.writer, self.nodes, self._traced_steps, self._buffer.device_clock)
        self.telemetry = Telemetry(self._telemetry_hz) if self._telemetry_hz > 0 else None
        if self.telemetry:
            self.telemetry.start()
        self._listening = marks.listening(self)
        self._listening.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        status, reason = outcome_of(kind, error)
        failure = find_out_of_memory(error, self._device)
        try:
            self._abandon_step()
            self._attach("nothing")
            self._probes.remove()
            self._phases.remove()
        finally:
            if self._listening:
                self._listening.__exit__(None, None, None)
            if self.telemetry:
                self.telemetry.stop()
            for loader in self._loaders:
                forget_workers(loader)
        try:
            if self._window.open:
                self._notebook.operators(self._window.stop())
            self._notebook.close(self._drain_telemetry())
            if failure is not None:
                status = failure.status
                self.writer.info["oom"] = self._describe(failure)
            if self._memory:
                self._memory.close(self.writer, keep_unfinished=failure is not None)
            self.writer.info["notes"] = self.notes
            self.writer.close(status, reason)
        except Exception:
            if kind is None:  # never hide the user's own exception behind ours
                raise
        finally:
            self._open_spans.forget()
        return False

    @property
    def steps_done(self) -> int:
        """Steps that ended, of whatever kind."""
        return self._index

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.writer.folder

    def continue_from(self, step: int, epoch: int) -> None:
        """Number steps and passes on from those of an earlier run; what is recorded how does not change."""
        self._first_step, self._epoch = step, epoch - 1

    def rest(self) -> None:
        """Listen to nothing until the next step: what comes between, such as an evaluation, runs bare."""
        self._attach("nothing")
        if self._memory:
            self._memory.pause()

    def note(self, text: str) -> None:
        """Say something once, in every view of the run."""
        if text not in self.notes:
            self.notes.append(text)

    # ---- steps

    def steps(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches of one pass; each is one step, from asking for it to asking for the next."""
        self._epoch += 1
        pause_start_ns = perf_counter_ns()
        iterator: Iterator[Any] | None = None
        first, dropped = True, False
        try:
            while True:
                mode = self._prepare()
                start_ns = perf_counter_ns()
                self._buffer.mark_processor(STEP_BEGINS)
                pause_ns = start_ns - pause_start_ns
                if iterator is None:  # starting workers is part of waiting for the first batch
                    self.writer.info["num_workers"] = getattr(loader, "num_workers", None)
                    iterator = instrumented_iterator(loader)
                    self._loaders.append(loader)
                self._fetching = True
                try:
                    item = next(iterator)
                except StopIteration:
                    self._fetching = False
                    return
                self._fetching = False
                waited_ns = perf_counter_ns()
                self._buffer.mark_processor(BATCH_ARRIVED)
                batch, timing = unwrap(item)
                if self._memory:
                    self._memory.arrived(batch, _worker_of(timing))
                number, times = self._first_step + self._index, (start_ns, waited_ns, pause_ns)
                self._step = OpenStep(number, self._epoch, mode, *times, first, timing)
                self._buffer.take_events()
                if mode != BARE and self._buffer.device_clock is not None:
                    self._step.first_handle = self._buffer.device_clock.record()
                self._step.content = describe_batch(batch)
                yield batch
                pause_start_ns = self._finish_step()
                first = False
        except GeneratorExit:
            dropped = True
            raise
        finally:
            with suppress(*[Exception] if dropped else []):  # torch's handler of dead workers may raise here
                self._abandon_step(complete_if_possible=True)

    def losses(self, step: int, values: Mapping[str, float]) -> None:
        """Losses of a step, as only the loop knows them; they may come late."""
        self.last_loss = values.get("loss")
        self.writer.append("losses", [(step, name, value) for name, value in values.items()])

    def _prepare(self) -> str:
        """Bring the probes into the state the coming step wants."""
        mode = self.schedule.mode(self._index)
        if self.telemetry:
            self.telemetry.hold(mode == BARE)
        if mode == BARE:
            self._attach("nothing")
        elif self.level == "phases":
            self._attach("phases")
        else:
            self._attach("modules" if self.schedule.with_modules(self._index) else "phases")
        if mode == OPERATORS and not self._window.open:
            self._window.start()
        elif mode != OPERATORS and self._window.open:
            self._notebook.operators(self._window.stop())
        watching = self._memory is not None and self.schedule.with_memory(self._index)
        self._scribe.record_functions = mode == OPERATORS or watching
        if self._memory and watching:
            self._memory.begin(self._first_step + self._index, shapes=mode == WARMUP)
        return mode

    def _finish_step(self, end_ns: int | None = None) -> int:
        """Close the current step, now or as of `end_ns`, then do the bookkeeping; returns when it ended."""
        step, self._step = self._step, None
        if step is None:
            return perf_counter_ns()
        step.end_ns = perf_counter_ns() if end_ns is None else end_ns
        step.processor = self._buffer.mark_processor(STEP_ENDS)
        step.events, step.handles = self._buffer.take_events()
        step.counts, self._counts = self._counts, {}
        self._index += 1
        self._last_events = step.events
        if self._memory:
            if self.schedule.with_memory(self._index) and inside_compiled_code():
                self._look_less_deeply(IN_COMPILED_CODE)
            coming = self.schedule.mode(self._index) == WARMUP
            shapes = coming if self.schedule.with_memory(self._index) else None
            self.writer.append("memory", self._memory.end(step, step.mode == MEMORY, shapes))
        self._notebook.step(step)
        if self._window.full and self.schedule.mode(self._index) == OPERATORS:
            self.schedule = self.schedule.without_operators_from(self._index)
            grown = self._window.taken_bytes / 1e9
            self.note(f"operators of fewer steps than asked for: the process grew by {grown:.1f} GB")
        self.between_steps(self._index)
        if self.writer.due and self.schedule.mode(self._index) != BARE:  # which nothing may disturb
            self.writer.append("telemetry", self._drain_telemetry())
            self.writer.flush(wait=False)
        return step.end_ns

    def _look_less_deeply(self, why: str) -> None:
        """No operators and no memory from the coming step on."""
        self.note(why)
        self.schedule = replace(self.schedule, operator_steps=0, memory_steps=0)

    def _abandon_step(self, complete_if_possible: bool = False) -> None:
        """A step the loop left by `break` or an exception: kept if it got as far as its last phase."""
        step = self._step
        if step is None:
            return
        optimizer = self.nodes.phase("optimizer").number
        backward = self.nodes.phase("backward").number
        last = {code >> 2 for code in self._buffer.items[::3]}
        broken = self._buffer.failed or open_phase(self._buffer.items, self.nodes) is not None
        if complete_if_possible and not broken and (optimizer in last or backward in last):
            self._finish_step()
        else:
            self._step = None
            self._last_events = self._buffer.take_events()[0]
            if self._memory:
                self._memory.abandon(step.index, self._last_events)

    def _attach(self, what: str) -> None:
        if what == self._attached:
            return
        self._probes.detach()
        self._phases.detach()
        if what != "nothing":
            self._phases.attach()  # first, so that the forward phase encloses the root module
            self._probes.attach(modules=what == "modules")
        self._attached = what

    # ---- marks

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase that code marks itself: `with detscope.phase("transfer"):`."""
        number = self.nodes.phase(name).number
        if self._attached in ("", "nothing"):
            yield
            return
        self._buffer.enter_node(number)
        try:
            yield
        finally:
            self._buffer.exit_node(number)

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """A named region inside whatever is going on."""
        if self._attached != "modules":
            yield
            return
        before, after = self._scribe.pair(self.nodes.add("region", name, "region").number)
        before(None, ())
        try:
            yield
        finally:
            after(None, (), None)

    # ---- small helpers

    def _describe(self, failure: OutOfMemory) -> dict[str, Any]:
        """What ran out and where; the operator is known where memory was watched."""
        step = self._first_step + self._index
        if self._memory and self._fetching:
            self._memory.abandon(step, ())
        place = place_of_failure(self._last_events, self.nodes, self._scribe.failed_in)
        if self._fetching:  # the step had not begun: its batch was being made
            place = {"phase": "data", "module": None}
        watched = self._memory.unfinished.place if self._memory and self._memory.unfinished else {}
        place["module"] = place["module"] or watched.get("module")
        return {"step": step, **asdict(failure), "operator": None, "time_ns": None, **watched, **place}

    def _add_count(self, name: str, value: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + value

    def _drain_telemetry(self) -> list[tuple[Any, ...]]:
        return [tuple(sample) for sample in self.telemetry.drain()] if self.telemetry else []


def _worker_of(timing: BatchTiming | None) -> int | None:
    return timing.pid if timing is not None and timing.worker >= 0 else None

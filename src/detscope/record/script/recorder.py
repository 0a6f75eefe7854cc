"""A recorder whose steps are told from outside, after the fact, and which may change its mind about them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Literal

import polars as pl
import torch
from torch import nn

from detscope.faults import error_text
from detscope.record.content import BatchContent, add_contents
from detscope.record.device.clock import DeviceMark
from detscope.record.loader import BatchTiming
from detscope.record.model.calls import CallListener
from detscope.record.script.losses import LOSS, LateLosses, StepLosses
from detscope.record.script.options import WARMUP_STEPS, ScriptOptions
from detscope.record.script.roots import NO_PARTS, ModelParts
from detscope.record.step_recorder import StepRecorder
from detscope.record.steps.events import BATCH_ARRIVED, STEP_BEGINS, WIDTH, EventStretch, decode_events
from detscope.record.steps.replay import replay_events
from detscope.record.steps.rows import make_loader_rows, make_step_rows, make_transform_rows
from detscope.record.steps.schedule import BARE, CENSUS, MEMORY, OPERATORS, RECORDED, WARMUP
from detscope.record.steps.share import DENSE, DENSE_TRAINED, RecordingShare, measure_event_ns
from detscope.record.steps.tables import OpenStep
from detscope.runs.writer import read_table, write_table
from detscope.zoo.contract import list_names

EVALUATION = "evaluation"  # the mode of evaluation steps in a script that trains
_OPERATOR_TABLES = ("ops", "device_events", "host_events", "memory", "memory_levels", "census")


@dataclass
class FinishedStep:
    """A step of the script, as the tracker saw it."""

    start_ns: int
    end_ns: int
    fresh_pass: bool = False
    batches: int = 1  # that went backward before the optimizer stepped
    contents: list[BatchContent] = field(default_factory=list)
    timings: list[tuple[BatchTiming, int]] = field(default_factory=list)  # and how long the loop waited
    losses: StepLosses = field(default_factory=StepLosses)
    num_workers: int | None = None  # of the loader
    transformed: list[tuple[BatchTiming, str]] = field(default_factory=list)  # in the loop, and where
    end_mark: DeviceMark | None = None  # of the device, where the step ended before it was known to


class ScriptRecorder(StepRecorder):
    """Made as soon as the script's model is known; the tracker says when steps end."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        parts: ModelParts,
        options: ScriptOptions,
        listener: CallListener,
        *,
        name: str,
        info: dict[str, Any],
    ) -> None:
        first = options.window.first if options.window else 0
        self._listener = listener
        super().__init__(
            model,
            list(optimizers),
            options.out,
            level=options.level,
            stages=parts.stages,
            observers=parts.observers,
            warmup_steps=max(0, WARMUP_STEPS - first),
            memory=options.memory,
            census=options.census,
            name=options.run_name(name),
            verb="run",
            info=info,
        )
        self.first_step = self._opened_at = first
        self._model = weakref.ref(model)
        self._full_schedule = self.schedule
        self._pause_ns = perf_counter_ns()
        self._relabelled = (0, EVALUATION)  # steps below this number came before what the run is about
        self._late = LateLosses(self.accelerator)
        self._not_finite: list[str] = []  # losses that were not when it happened first
        self.evaluating = self._evaluates_in_steps = False
        self._rested_in: int | None = None  # the step in which the model was last called without gradients
        self.trained = False
        # ranks wait for each other: all of them record the same steps; and who asks for steps wants those
        asked = options.max_steps is not None or options.window is not None
        self._event_ns = 0.0 if asked or options.ranks > 1 else measure_event_ns()
        self._share = RecordingShare(self._event_ns)

    def make_phases(self, model: nn.Module) -> CallListener:  # noqa: ARG002
        """Phases come from global hooks."""
        return self._listener

    # ---- steps

    @property
    def is_writing(self) -> bool:
        """Whether phases are written in the step under way."""
        return self.attached != "nothing"

    def open_step(self) -> None:
        """Bring the probes into the state the coming step wants; bookkeeping ends here."""
        mode = EVALUATION if self.evaluating else self.prepare_step()
        start_ns = perf_counter_ns()
        marks = (None, None) if self.evaluating else (self.mark_device(), None)
        self.begin_step(mode, start_ns, start_ns, start_ns - self._pause_ns, marks)
        if self.evaluating and self._evaluates_in_steps and self.schedule.mode_of(self.index) == CENSUS:
            self.begin_census()  # likely a training step: the one before it ended with an evaluation
        self.buffer.mark_processor(STEP_BEGINS)
        self.buffer.mark_processor(BATCH_ARRIVED)  # batches are phases like all others here

    def add_first_step(self, events: EventStretch, done: FinishedStep) -> None:
        """The step in which the model was found: it was seen, with its phases, before this recorder."""
        self.step = OpenStep(self.first_step, self.epoch, self._first_mode, done.start_ns, done.start_ns)
        self.buffer.put_events(events)
        self.end_step(done)

    def backdate_step(self, kept: EventStretch, mark: DeviceMark | None) -> None:
        """The step that was just opened had begun before: with these events, at this mark."""
        self.buffer.put_events(kept)
        if self.step is not None and mark is not None:
            self.forget_events(EventStretch([], [*self.step.begin_marks]))
            self.step.begin_marks = (mark, None)

    @property
    def _first_mode(self) -> str:
        return WARMUP if self.schedule.warmup_steps else self.schedule.mode_of(0)

    def end_step(self, done: FinishedStep) -> str:
        """A step has ended; how it was recorded."""
        step = self.step
        if step is None:
            return ""
        if step.mode == EVALUATION:  # it looked like evaluation and turned out to be training
            step.mode = WARMUP
        if done.fresh_pass:
            self.epoch += 1
        step.epoch, step.first_of_epoch = max(0, self.epoch), done.fresh_pass
        step.start_ns = step.waited_ns = done.start_ns
        step.pause_ns = max(0, done.start_ns - self._pause_ns)
        step.content = add_contents(done.contents)
        if done.num_workers is not None:
            self.writer.info["num_workers"] = done.num_workers
        for timing, waited_ns in done.timings:
            self.writer.append_rows("loader", make_loader_rows(step.index, timing, waited_ns))
            self.writer.append_rows("transforms", make_transform_rows(step.index, timing))
        for timing, where in done.transformed:
            self.writer.append_rows("transforms", make_transform_rows(step.index, timing, where))
        self._pause_ns = self.finish_step(max(done.end_ns, done.start_ns + 1), done.end_mark)
        self._keep_losses(self._late.put_losses(step.index, done.losses))
        # a device works on while its host records
        if step.mode == RECORDED and (self.accelerator.is_host or not self.trained):
            # on a busy machine a step takes longer, and so does recording it
            spent_ns = min(step.end_ns - step.start_ns, step.processor[-1] - step.processor[1])
            self._share_steps(len(step.events) // WIDTH, spent_ns, perf_counter_ns() - step.end_ns)
        return step.mode

    def pass_bare_step(self, start_ns: int, end_ns: int, contents: list[BatchContent]) -> bool:
        """A step has ended; whether it was bare, as the next is: then this is all that is done about it."""
        step = self.step
        if step is None or step.mode != BARE or self.memory or self.buffer.marker is not None:
            return False
        if self.evaluating or self.tables.wants_every_step or self.schedule.mode_of(self.index + 1) != BARE:
            return False
        step.epoch, step.start_ns, step.waited_ns = max(0, self.epoch), start_ns, start_ns
        step.pause_ns, step.end_ns = max(0, start_ns - self._pause_ns), max(end_ns, start_ns + 1)
        step.content = contents[0] if len(contents) == 1 else add_contents(contents)
        self.tables.keep_bare(step)
        self.index += 1
        self._pause_ns = step.end_ns
        self.step = OpenStep(self.next_step, self.epoch, BARE, start_ns, start_ns)
        return True

    def _share_steps(self, events: int, spent_ns: int, closing_ns: int) -> None:
        """Of short steps a part is recorded."""
        self._share.add_step(events, spent_ns, closing_ns)
        one_in = self._share.one_in(DENSE_TRAINED if self.trained else DENSE)
        schedule = self.schedule
        if one_in != schedule.recorded_one_in:
            begun = schedule.thinned_from or self.index
            self.schedule = replace(schedule, recorded_one_in=one_in, thinned_from=begun)

    def _keep_losses(self, found: Iterable[tuple[int, dict[str, float]]]) -> None:
        for step, values in found:
            if LOSS not in values:
                continue
            numbers = {name: value for name, value in values.items() if math.isfinite(value)}
            if len(numbers) < len(values) and not self._not_finite:
                self._not_finite = [name for name in values if name not in numbers]
                self.note(f"a loss was not finite, first at step {step}: {', '.join(self._not_finite)}")
            self.losses(step, numbers)

    def end_evaluation(self, done: FinishedStep) -> None:
        """An evaluation step beside the training has ended."""
        self.end_census(None)
        step, self.step = self.step, None
        heard = self.buffer.take_events()
        self.counts = {}
        self.forget_events(heard)
        account = replay_events(heard.items, self.nodes, done.start_ns, done.end_ns)
        number = step.index if step else self.next_step
        self.first_step += 1
        self.writer.append_rows("steps", make_step_rows(number, max(0, self.epoch), EVALUATION, account))
        seen = OpenStep(number, 0, EVALUATION, done.start_ns, done.start_ns)
        seen.content = add_contents(done.contents)
        self.writer.append_rows("content", [seen.content_row()])
        if self.writer.is_flush_due:
            self.tables.flush_rows()
        self._pause_ns = done.end_ns

    def drop_step(self) -> None:
        """What happened since the last border was no step."""
        self.end_census(None)
        self.step = None
        self.forget_events(self.buffer.take_events())
        self.counts = {}
        self._pause_ns = perf_counter_ns()

    def prepare_step(self) -> str:
        """Bring the probes into the state the coming step wants; evaluation may have cut a window in two."""
        if self.window.is_open and self.schedule.mode_of(self.index) != OPERATORS:
            self._take_operators()
        return super().prepare_step()

    def _take_operators(self) -> None:
        raw = self.window.stop()
        if self.tables.operator_spans:
            self.tables.add_operators(raw)

    # ---- evaluation and training

    def rest_for_evaluation(self) -> None:
        """Evaluation beside a training is timed by phases only; inside of a step it is counted with it."""
        self.evaluating, self._rested_in = True, self.next_step
        if self._went_backward():
            self._evaluates_in_steps = True
        if not self._evaluates_in_steps:
            self.end_census(None)
        if self.window.is_open:
            self._take_operators()
        if self.memory:
            self.memory.pause_session()
        if self.buffer.marker is not None:
            self.buffer.marker.active = False
        self.attach_probes("phases")

    def resume_training(self) -> None:
        """A model is called with gradients again: the step under way is a training step after all."""
        self.evaluating = False
        if self.step is not None:
            self._evaluates_in_steps |= self._rested_in == self.step.index
            mode = self.prepare_step()
            counted = self.census is not None and self.census.is_listening
            self.step.mode = WARMUP if mode == CENSUS and not counted else mode  # a part of it was missed

    def _went_backward(self) -> bool:
        """Whether the step under way has trained already."""
        backward = self.nodes.phase_node("backward").number
        return self.step is not None and any(one == backward for one, *_ in decode_events(self.buffer.items))

    def postpone_deep_looks(self) -> None:
        """While it is open whether the script will train, operators and memory wait for that."""
        self.schedule = replace(self.schedule, operator_steps=0, memory_steps=0, census_steps=0)

    def make_way(self, why: str) -> None:
        """No operators and no memory from now on: somebody else profiles."""
        schedule = self._full_schedule
        if not (schedule.operator_steps or schedule.memory_steps or schedule.census_steps):
            return
        self.end_census(None)
        if self.window.is_open:
            self.window.stop()
            self.tables.forget_operators()
        if self.memory:
            self.memory.pause_session()
        self.schedule = schedule
        self.skip_deep_looks(why)
        if self.step is not None and self.step.mode in (OPERATORS, MEMORY, CENSUS):
            self.step.mode = WARMUP  # half of it was profiled

    def skip_deep_looks(self, why: str) -> None:
        """No operators and no memory, not when the script begins to train either."""
        super().skip_deep_looks(why)
        self._full_schedule = self.schedule

    def skip_census(self) -> None:
        """No counting, not when the script begins to train either."""
        super().skip_census()
        self._full_schedule = replace(self._full_schedule, census_steps=0)

    def begin_training(self, model: nn.Module, parts: ModelParts, name: str) -> None:
        """The first optimizer step: the run is about training, what came before was evaluation."""
        self.trained = True
        self._begin_anew(model, parts, name, EVALUATION)
        if self.step is not None:
            self.step.mode = self._first_mode

    def change_evaluated(self, model: nn.Module, parts: ModelParts, name: str) -> int:
        """Another model turned out to do the work: steps so far are warm-up; how many those are."""
        self._begin_anew(model, parts, name, WARMUP)
        return self.first_step - self._opened_at

    def _begin_anew(self, model: nn.Module, parts: ModelParts, name: str, mode_before: str) -> None:
        """The figures begin with the next step; those before it get another mode in the end."""
        self._relabelled = (self.next_step, mode_before)
        self.first_step, self.index = self.next_step, 0
        self.schedule, self._share = self._full_schedule, RecordingShare(self._event_ns)
        if self.window.is_open:
            self.window.stop()
        self.tables.forget_operators(all_windows=True)
        for table in _OPERATOR_TABLES:
            self.writer.forget_rows(table)
        if model is not self._model():
            self._model = weakref.ref(model)
            self._replace_probes(parts)
            self.writer.info["stages"] = list_names(parts.stages)
            self.writer.info["model"] = parts.describe_model(model, name)
        if self.memory:
            self.memory.pause_session()
            self.memory = self.make_memory(model)

    def _replace_probes(self, parts: ModelParts) -> None:
        self.attach_probes("nothing")
        self.probes.remove_all()
        model = self._model()
        if model is not None:
            which = "none" if self.level == "phases" else "all"
            self.probes = self.make_probes(model, which, parts.stages, parts.observers)

    @property
    def has_new_modules(self) -> bool:
        """Whether the model has parts now that it did not have when it was looked at."""
        model = self._model()
        if model is None or self.level == "phases":
            return False
        return not all(self.probes.knows_module(part) for part in model.modules())

    def record_phases_only(self, why: str) -> None:
        """Modules cannot be told apart: they are not looked at any more."""
        if self.level == "phases":
            return
        self.level = "phases"
        self._replace_probes(NO_PARTS)
        self.writer.info["level"] = "phases"
        self.note(why)

    # ---- the end

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            self._keep_losses(self._late.read_pending())
        except RuntimeError as failure:  # of a device that answers no more
            why = error_text(failure).splitlines()[0][:200]
            self.note(f"the losses of the last steps are not known: {why}")
        return super().__exit__(kind, error, trace)

    def relabel_steps(self) -> None:
        """Steps that the script began with and that turned out to be beside the matter get their mode."""
        path = self.run / "steps.parquet"
        before, mode_before = self._relabelled
        if not before or not path.exists():
            return
        early = pl.col("step") < before
        mode = pl.when(early).then(pl.lit(mode_before)).otherwise(pl.col("mode"))
        write_table(path, read_table(path).with_columns(mode.alias("mode")))

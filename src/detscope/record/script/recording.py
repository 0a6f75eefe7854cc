"""From a script's steps to a run: opens it when the model is known, decides what each step is part of."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from detscope.machine.accelerator import Accelerator
from detscope.record.content import BatchContent
from detscope.record.device.clock import DeviceMark
from detscope.record.foreign import Patches, WeakObjects, raised_by_handler
from detscope.record.loader import BatchTiming
from detscope.record.model.borders import Pair
from detscope.record.model.calls import CallListener
from detscope.record.model.named_parts import LOSS, NamedParts
from detscope.record.operators.compiled import count_compiled_frames, has_compiled_parts
from detscope.record.optimizer_facts import describe_optimizer
from detscope.record.script.closing import (
    COMPILED,
    NEW_MODULES,
    NO_MODULE,
    OWN_PROFILER,
    SCRIPTED,
    describe_script,
    find_outcome,
    note_other,
    note_parts,
    note_wrappers,
    read_step_figures,
    write_empty_run,
)
from detscope.record.script.options import WARMUP_STEPS, ScriptOptions
from detscope.record.script.other import OtherSampler
from detscope.record.script.pacing import StepPacer
from detscope.record.script.recorder import FinishedStep, ScriptRecorder
from detscope.record.script.roots import (
    NO_PARTS,
    ModelParts,
    RootModel,
    RootModels,
)
from detscope.record.steps.events import EventBuffer, EventStretch
from detscope.record.steps.schedule import RECORDED
from detscope.runs.atomic import write_text
from detscope.zoo.registry import recognise_parts
from detscope.zoo.structure import name_class

if TYPE_CHECKING:
    from detscope.record.communication import CommunicationWatch


@dataclass
class PartTimes:
    """Training or evaluation: how many steps, how long."""

    steps: int = 0
    batches: int = 0
    batches_each: list[int] = field(default_factory=list)  # of the steps
    wall_ns: list[int] = field(default_factory=list)

    def add_step(self, done: FinishedStep) -> None:
        """Take a step in."""
        self.steps += 1
        self.batches += done.batches
        self.batches_each.append(done.batches)
        self.wall_ns.append(done.end_ns - done.start_ns)

    def describe_part(self) -> dict[str, Any]:
        """For `run.json`."""
        return {
            "steps": self.steps,
            "batches": self.batches,
            "total_s": sum(self.wall_ns) / 1e9,
            "step_p50_ms": median(self.wall_ns) / 1e6 if self.wall_ns else None,
        }


class ScriptRanks:
    """Owned by the recording. A process group of several says that there are ranks, whoever started them."""

    def __init__(self, options: ScriptOptions) -> None:
        self._options = options
        self._watch: CommunicationWatch | None = None
        self.group_seen: Callable[[int, int, Any], None] = lambda _rank, _ranks, _store: None
        self.look: Callable[[], None] = lambda: None  # called between steps

    def attach_watch(self, patches: Patches, phase_now: Callable[[], str | None]) -> None:
        """Time collectives, should this be or become one of several ranks."""
        if torch.distributed.is_available():
            from detscope.record.communication import CommunicationWatch

            self._watch = CommunicationWatch(self._options.rank or 0)
            self._watch.attach_to_all(patches)
            self._watch.attach_to_calls(patches, phase_now)

    def notice_group(self) -> ScriptOptions:
        """The options, with the place of this process among the ranks, if it is one by now."""
        distributed = torch.distributed
        if self._options.rank is None and distributed.is_available() and distributed.is_initialized():
            rank, ranks = distributed.get_rank(), distributed.get_world_size()
            if ranks > 1:
                self._options = replace(self._options, rank=rank, ranks=ranks)
                if self._watch is not None:
                    self._watch.rank = rank
                self.group_seen(rank, ranks, distributed.distributed_c10d._get_default_store())
        return self._options

    def watch_run(self, recorder: ScriptRecorder) -> None:
        """The run is open."""
        if self._watch is not None:
            self._watch.set_aside = recorder.track_collectives()

    def keep_step(self, recorder: ScriptRecorder, step: int) -> None:
        """A step has ended: what was noted is its own."""
        if self._options.rank is None and self.notice_group().rank is not None:  # a group that came late
            recorder.writer.info["rank"] = {"rank": self._options.rank, "ranks": self._options.ranks}
        self.look()
        if self._watch is not None:
            recorder.writer.append_rows("communication", self._watch.take_step(step))

    def take_loss(self, since_ns: int) -> None:
        """What follows this moment was the loss's."""
        if self._watch is not None:
            self._watch.take_for_forward(since_ns)

    def skip_step(self) -> None:
        """What was noted belongs to no step that counts."""
        if self._watch is not None:
            self._watch.skip_step()


class ScriptRecording:
    """Owned by the tracker."""

    def __init__(
        self,
        options: ScriptOptions,
        roots: RootModels,
        make_listener: Callable[[], CallListener],
        sampler: OtherSampler,
    ) -> None:
        self._options = options
        self.roots = roots
        self._make_listener = make_listener
        self._sampler = sampler
        self._recorder: ScriptRecorder | None = None
        self.model: RootModel | None = None  # the one that is taken apart
        self._notes: list[str] = []
        self._optimizers: WeakObjects[Any] = WeakObjects()
        self.optimizer_facts: list[dict[str, Any]] = []  # of those that stepped
        self._training_loaders: set[int] = set()
        self._pairs: dict[int, Pair] = {}
        self.failure: BaseException | None = None  # what ended the recording before the script
        self.interrupted = False  # a signal handler of the script's did, and meant the script
        self._failure_text = ""
        self._stopped = False
        self.steps_before_model = 0  # evaluation steps before another model turned out to do the work
        self._next_look = 0  # evaluation steps until it is asked again which model does the work
        self._compiled_before = count_compiled_frames()
        self.training, self.evaluation = PartTimes(), PartTimes()
        self.optimizers_built = 0
        self.optimizer_steps = self.optimizer_steps_skipped = 0
        self.precision: str | None = None
        self._profiler_taken = False
        self.no_step: str | None = None  # why there may be none, where that is known
        self.ranks = ScriptRanks(options)
        # called when the model turns out to be on an accelerator; nothing is asked of one before
        self.device_found: Callable[[Accelerator], None] = lambda _accelerator: None

    # ---- what hooks ask and tell

    def note(self, text: str) -> None:
        """Say something once, in every view of the run."""
        if self._recorder:
            self._recorder.note(text)
        elif text not in self._notes:
            self._notes.append(text)

    def make_way(self) -> None:
        """The script is about to start a profiler: ours ends, if it runs."""
        self._profiler_taken = True
        if self._recorder:
            self._recorder.make_way(OWN_PROFILER)

    @property
    def is_writing(self) -> bool:
        """Whether phases are written now."""
        return not self._after_window and (self._recorder is None or self._recorder.is_writing)

    @property
    def parts(self) -> NamedParts | None:
        """What of a step beside its model has a name; None while there is no run."""
        return None if self._recorder is None else self._recorder.parts

    def take_loss(self, since_ns: int | None) -> None:
        """Since then a loss was computed, if at all: what was seen running is no `other`."""
        if since_ns is not None:
            self._sampler.forget_since(since_ns)
            self.ranks.take_loss(since_ns)

    def find_pair(self, root: RootModel) -> Pair | None:
        """How a root that is not the recorded model is written among the modules."""
        recorder, model = self._recorder, self.model
        if recorder is None or model is None or recorder.attached != "modules":
            return None
        if root is model or root in model.parts or (root.inner is not None and root.inner is model.inner):
            return None
        pair = self._pairs.get(root.number)
        if pair is None:
            same = sum(other.label == root.label for other in self.roots.all[: root.number])
            name = f"[{root.label} {same + 1}]" if same else f"[{root.label}]"
            stage = root.label
            if not root.has_weights:
                stage = f"{LOSS}.{name_class(stage.removesuffix('Loss'))}".removesuffix(".")
            node = recorder.nodes.add_node("module", name, root.label, stage, root.parameters or 0)
            pair = self._pairs[root.number] = recorder.borders.border_pair(node.number)
        return pair

    def prepare_root(self, root: RootModel, gradients: bool) -> None:
        """A model is about to be called: evaluation beside a training is looked at less closely."""
        recorder = self._recorder
        if recorder is None or not recorder.trained:
            return
        if gradients:
            if recorder.evaluating:
                recorder.resume_training()
            return
        model = self.model
        of_model = model is not None and (root.inner is model.inner or root in model.parts)
        if not recorder.evaluating and (of_model or not root.calls_in_training_steps):
            recorder.rest_for_evaluation()

    def begin_pass(self, loader: int) -> None:
        """A loader is asked for its iterator."""
        if self._recorder and loader in self._training_loaders:
            self._recorder.evaluating = False

    def watch_arguments(self, given: Any) -> None:
        """A model that is known is called with these."""
        if self._recorder:
            self._recorder.watch_arguments(given)

    def watch_inputs(self, batch: Any, timing: BatchTiming | None) -> None:
        """The loop has a batch."""
        if self._recorder:
            self._recorder.watch_inputs(batch, timing)

    def add_optimizer_step(self, optimizer: Any, skipped: bool) -> None:
        """An optimizer has stepped, or a scaler has decided against it."""
        self.optimizer_steps += 1
        self.optimizer_steps_skipped += skipped
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self.optimizer_facts.append(describe_optimizer(optimizer))
            if self._recorder:
                self._recorder.optimizers.add(optimizer)

    # ---- steps

    def end_step(self, done: FinishedStep | None, trains: bool, loader: int, buffer: EventBuffer) -> bool:
        """A step has ended (None: what counts as none); whether the script is to stop."""
        if done is None:
            self.ranks.skip_step()
            self._sampler.take_step(counts=False)
            if self._recorder:
                self._recorder.drop_step()
            return self._stopped
        number = self.training.steps if trains else self.training.steps or self.evaluation.steps
        if trains and done.fresh_pass:
            self._training_loaders.add(loader)
        first = self._options.window.first if self._options.window else 0
        if self._stopped or self._after_window or number < first:
            self._count_step(done, trains)
            self.ranks.skip_step()
            self._sampler.take_step(counts=False)
            if number == first - 1:
                self._open_run(trains)
            return self._stopped
        mode = self._record_step(done, trains, buffer)
        self._sampler.take_step(counts=mode == RECORDED)
        wanted, recorder = self._options.max_steps, self._recorder
        if wanted is None or recorder is None or recorder.trained != bool(self.training.steps):
            return self._stopped
        if recorder.steps_done >= recorder.schedule.count_steps(wanted):
            self._stopped = True
            self.note(f"stopped after {wanted} recorded steps (--max-steps): the script would have gone on")
        return self._stopped

    def pass_bare_step(self, start_ns: int, end_ns: int, contents: list[BatchContent]) -> bool:
        """An evaluation step has ended; whether it was bare, as the next is, and nobody waits for it."""
        recorder, options = self._recorder, self._options
        if recorder is None or recorder.trained or self._stopped or options.rank is not None:
            return False
        if options.window is not None or options.max_steps is not None:
            return False
        if not recorder.pass_bare_step(start_ns, end_ns, contents):
            return False
        self.evaluation.steps += 1
        self.evaluation.batches += 1
        self.evaluation.wall_ns.append(end_ns - start_ns)
        return True

    def _record_step(self, done: FinishedStep, trains: bool, buffer: EventBuffer) -> str:
        recorder = self._recorder
        if recorder is None:
            recorder = self._open_run(trains)
            recorder.add_first_step(buffer.take_events(), done)
            self._count_step(done, trains)
            return ""
        if trains and not recorder.trained:
            recorder.begin_training(*self._choose_parts(self.roots.choose_model(trained=True)))
            self._sampler.forget_looks()
        if trains or not recorder.trained:
            self._count_step(done, trains)
            mode = recorder.end_step(done)
            if not trains:
                self._reconsider_model(recorder)
            return mode
        self.ranks.skip_step()
        recorder.end_evaluation(done)
        self.evaluation.add_step(done)
        return ""

    def _reconsider_model(self, recorder: ScriptRecorder) -> None:
        """Without a training the model is the one that did most; which that is may turn out late."""
        steps = self.evaluation.steps
        if steps < self._next_look:
            return
        self._next_look = steps + max(1, steps // 4)
        before = self.model
        root = self.roots.choose_model(trained=False, so_far=before)
        if root is None or before is None or root is before or root.inner is before.inner:
            return
        model, parts, name = self._choose_parts(root)
        if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
            recorder.record_phases_only(SCRIPTED)
        self._sampler.forget_looks()
        self.steps_before_model = steps
        for one in self.roots.all:
            one.calls_in_evaluation_steps = 0
        shown = NO_PARTS if recorder.level == "phases" else parts
        other = f"another {name}" if before.label == name else before.label
        if recorder.change_evaluated(model, shown, name) > WARMUP_STEPS:
            self.note(
                f"the figures are of the steps since {name} had done more than {other}: the"
                f" {steps} before that count as warm-up"
            )

    def _count_step(self, done: FinishedStep, trains: bool) -> None:
        (self.training if trains else self.evaluation).add_step(done)

    def begin_step(self, buffer: EventBuffer) -> EventBuffer:
        """The next step begins; where its events go."""
        recorder = self._recorder
        if recorder is None:
            buffer.take_events()
            buffer.processor = []
            return buffer
        if self._after_window or self._stopped:
            recorder.rest()
            recorder.forget_events(recorder.buffer.take_events())
            return recorder.buffer
        if recorder.level != "phases" and count_compiled_frames() > self._compiled_before:
            recorder.record_phases_only(COMPILED)
        if not recorder.trained and self.optimizers_built:
            recorder.postpone_deep_looks()
        recorder.open_step()
        self._sampler.hold_looks(asleep=not recorder.is_writing)
        return recorder.buffer

    def backdate_step(self, buffer: EventBuffer, kept: EventStretch, mark: DeviceMark | None) -> None:
        """The step that begins had begun before it was known to: with these events, at this mark."""
        if self._recorder is None:
            buffer.put_events(kept)
        else:
            self._recorder.backdate_step(kept, mark)

    # ---- window and limit

    @property
    def _after_window(self) -> bool:
        window = self._options.window
        return window is not None and (self.training.steps or self.evaluation.steps) >= window.end

    # ---- opening and closing

    def _choose_parts(self, root: RootModel | None) -> tuple[torch.nn.Module, ModelParts, str]:
        if root is None or root.inner is None:
            self.note(NO_MODULE)
            return torch.nn.Module(), NO_PARTS, "no_module"
        self.model = root
        parts = NO_PARTS if self._options.level == "phases" else ModelParts(*recognise_parts(root.inner))
        return root.inner, parts, root.label

    def _open_run(self, trains: bool) -> ScriptRecorder:
        """The first step has ended: now it is known what the script is about."""
        self._options = self.ranks.notice_group()
        model, parts, name = self._choose_parts(self.roots.choose_model(trains))
        outermost = self.model.module if self.model else None
        compiled = count_compiled_frames() > self._compiled_before or (
            outermost is not None and has_compiled_parts(outermost)
        )
        options, shown = self._options, NO_PARTS if compiled else parts
        rank = {"rank": options.rank or 0, "ranks": options.ranks}
        info = {"data": None, "rank": rank, "model": parts.describe_model(model, name)}
        if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
            self.note(SCRIPTED)
            options, shown = replace(options, level="phases", memory=False), NO_PARTS
        told = (options, self._make_listener())
        recorder = ScriptRecorder(model, list(self._optimizers), shown, *told, name=name, info=info)
        recorder.__enter__()
        recorder.between_steps = lambda _done: self.ranks.keep_step(recorder, recorder.next_step - 1)
        recorder.trained = trains
        self._recorder = recorder
        if recorder.accelerator.kind != "cpu":
            self.device_found(recorder.accelerator)
        self.ranks.watch_run(recorder)
        if self._profiler_taken:
            recorder.make_way(OWN_PROFILER)
        for text in self._notes:
            recorder.note(text)
        if compiled:
            recorder.record_phases_only(COMPILED)
            recorder.skip_census()
        for text in note_wrappers(outermost, self.model.wrappers if self.model else ()):
            recorder.note(text)
        self._sampler.start()
        return recorder

    def fail_with(self, error: BaseException) -> None:
        """The recording cannot go on; the script can."""
        self.failure, self.interrupted = error, raised_by_handler(error)
        self._failure_text = "".join(traceback.format_exception(error))
        if self._recorder:
            self._recorder.rest()

    def close_run(self, error: BaseException | None, pacer: StepPacer) -> Path:
        """The script has ended: close the run and say what happened."""
        self._sampler.stop()
        recorder = self._recorder
        if recorder is None:
            writer = write_empty_run(self._options, self._notes, self.no_step)
        else:
            if recorder.has_new_modules:
                recorder.note(NEW_MODULES)
            recorder.__exit__(None if error is None else type(error), error, None)
            recorder.relabel_steps()
            writer = recorder.writer
        figures = read_step_figures(writer.folder)
        other = self._sampler.make_rows(figures.other_ms, figures.unheard)
        status, reason, code = find_outcome(error, self.failure, self.interrupted)
        if recorder is None and self.no_step is not None and status == "ok":
            status, reason = "partial", self.no_step
        info = writer.info
        if not str(info["status"]).startswith("oom"):
            info["status"], info["reason"] = status, reason
        facts: dict[str, Any] = {"name": self._options.script, "exit_code": code}
        facts |= {"command": list(self._options.command), "folder": self._options.folder}
        facts["max_steps"] = self._options.max_steps
        info["script"] = facts | describe_script(self, pacer, other)
        info["optimizers"] = self.optimizer_facts
        info["precision"] = self.precision
        per_batch = median(self.training.batches_each or [1])  # as images: a mean is that of no step
        info["batch_size"] = None if figures.images is None else round(figures.images / per_batch)
        about_other = note_other(other, figures, self._sampler.looks.total())
        info["notes"] = [*info["notes"], *note_parts(self, pacer), *about_other]
        writer.save_info()
        if self._failure_text:
            write_text(writer.folder / "log.txt", self._failure_text)
        return writer.folder
